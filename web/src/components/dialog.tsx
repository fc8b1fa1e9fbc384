import type { ReactNode } from "react";
import { Dialog as Base } from "@base-ui/react/dialog";
import { X } from "lucide-react";
import { InlineCode } from "@/text/inline-code";
import { IconButton } from "./button";

interface DialogProps {
  isOpen: boolean;
  onClose: () => void;
  title: string;
  description?: string;
  children: ReactNode;
  width?: string;
}

export function Dialog({ isOpen, onClose, title, description, children, width = "md:max-w-lg" }: DialogProps) {
  return (
    <Base.Root open={isOpen} onOpenChange={(open) => { if (!open) onClose(); }}>
      <Base.Portal>
        <Base.Backdrop className="fade-in fixed inset-0 z-40 bg-backdrop" />
        <Base.Popup
          className={`fade-in fixed z-50 flex max-h-[92dvh] w-full flex-col border border-line bg-bg text-text max-md:inset-x-0 max-md:bottom-0 max-md:rounded-t-xl md:top-[10vh] md:left-1/2 md:max-h-[80vh] md:-translate-x-1/2 md:rounded-lg ${width}`}
        >
          <header className="flex items-start gap-3 px-5 pt-4 pb-3">
            <div className="min-w-0 flex-1">
              <Base.Title className="text-title font-semibold">{title}</Base.Title>
              {description !== undefined && <Base.Description className="mt-0.5 text-control text-muted"><InlineCode text={description} /></Base.Description>}
            </div>
            <Base.Close render={<IconButton label="Close" size="small"><X size={16} aria-hidden /></IconButton>} />
          </header>
          <div className="scroll-area min-h-0 px-5 pb-5">{children}</div>
        </Base.Popup>
      </Base.Portal>
    </Base.Root>
  );
}

export function DialogActions({ children }: { children: ReactNode }) {
  return <div className="mt-5 flex flex-wrap justify-end gap-2">{children}</div>;
}
