import type { ReactElement, ReactNode } from "react";
import { Menu as Base } from "@base-ui/react/menu";

export interface MenuAction {
  label: string;
  icon?: ReactNode;
  /** Why the action is not available now. */
  unavailable?: string | null;
  isDanger?: boolean;
  run: () => void;
}

export function Menu({ trigger, actions, label }: { trigger: ReactElement; actions: readonly (MenuAction | "separator")[]; label: string }) {
  return (
    <Base.Root>
      <Base.Trigger render={trigger} />
      <Base.Portal>
        <Base.Positioner sideOffset={6} align="end" className="z-50 outline-none">
          <Base.Popup aria-label={label} className="fade-in min-w-48 rounded-lg border border-line bg-bg p-1 text-control text-text outline-none">
            {actions.map((action, index) =>
              action === "separator" ? (
                <Base.Separator key={index} className="my-1 h-px bg-line" />
              ) : (
                <Base.Item
                  key={action.label}
                  disabled={action.unavailable != null}
                  onClick={action.run}
                  className={`flex cursor-default items-start gap-2.5 rounded-md px-2.5 py-1.5 outline-none select-none data-highlighted:bg-sunk data-disabled:text-muted max-md:py-3 ${action.isDanger === true ? "text-bad" : ""}`}
                >
                  <span className="mt-0.5 shrink-0" aria-hidden>{action.icon}</span>
                  <span>
                    {action.label}
                    {action.unavailable != null && <span className="block max-w-56 text-meta text-muted">{action.unavailable}</span>}
                  </span>
                </Base.Item>
              ),
            )}
          </Base.Popup>
        </Base.Positioner>
      </Base.Portal>
    </Base.Root>
  );
}
