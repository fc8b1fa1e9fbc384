import type { ReactNode } from "react";

export interface TabItem<T extends string> {
  id: T;
  label: string;
  icon?: ReactNode;
  count?: number | null;
}

interface TabsProps<T extends string> {
  label: string;
  items: readonly TabItem<T>[];
  current: T;
  onChange: (id: T) => void;
}

/** A row of tabs. Arrow keys move between them. */
export function Tabs<T extends string>({ label, items, current, onChange }: TabsProps<T>) {
  const move = (step: number) => {
    const index = items.findIndex((item) => item.id === current);
    const next = items[(index + step + items.length) % items.length];
    if (next === undefined) return;
    onChange(next.id);
    document.getElementById(`tab-${next.id}`)?.focus();
  };
  return (
    <div
      role="tablist"
      aria-label={label}
      className="flex h-10 shrink-0 items-stretch gap-0.5 overflow-x-auto border-b border-line px-2 [scrollbar-width:none] max-md:h-11"
      onKeyDown={(event) => {
        if (event.key === "ArrowRight") move(1);
        if (event.key === "ArrowLeft") move(-1);
      }}
    >
      {items.map((item) => {
        const isCurrent = item.id === current;
        return (
          <button
            key={item.id}
            id={`tab-${item.id}`}
            type="button"
            role="tab"
            aria-selected={isCurrent}
            aria-controls={`panel-${item.id}`}
            tabIndex={isCurrent ? 0 : -1}
            onClick={() => { onChange(item.id); }}
            className={`relative flex shrink-0 items-center gap-1.5 px-2.5 text-control whitespace-nowrap outline-offset-[-3px] ${isCurrent ? "font-semibold text-text after:absolute after:inset-x-2 after:bottom-0 after:h-0.5 after:rounded after:bg-accent" : "text-muted hover:text-text"}`}
          >
            <span className="lg:hidden">{item.icon}</span>
            {item.label}
            {item.count != null && item.count > 0 && <span className="rounded-full bg-sunk px-1.5 text-meta font-semibold text-muted">{item.count}</span>}
          </button>
        );
      })}
    </div>
  );
}

export function TabPanel({ id, children, className = "" }: { id: string; children: ReactNode; className?: string }) {
  return (
    <div id={`panel-${id}`} role="tabpanel" aria-labelledby={`tab-${id}`} className={`min-h-0 flex-1 ${className}`}>
      {children}
    </div>
  );
}
