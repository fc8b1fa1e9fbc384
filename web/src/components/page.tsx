import type { ReactNode } from "react";

/** The frame of a page without panes: a title, actions, and content that scrolls. */
export function Page({ title, actions, children, width = "max-w-5xl" }: { title: string; actions?: ReactNode; children: ReactNode; width?: string }) {
  return (
    <div className="scroll-area min-h-0 flex-1" data-pane={title}>
      <div className={`mx-auto flex w-full flex-col gap-5 px-4 py-5 md:px-6 md:py-7 ${width}`}>
        <header className="flex flex-wrap items-center justify-between gap-3">
          <h1 className="text-title font-semibold">{title}</h1>
          {actions}
        </header>
        {children}
      </div>
    </div>
  );
}
