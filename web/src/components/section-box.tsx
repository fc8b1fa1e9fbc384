import type { ReactNode } from "react";

/** A titled box of a settings page. */
export function SectionBox({ title, description, action, children }: { title: string; description?: string; action?: ReactNode; children: ReactNode }) {
  return (
    <section className="rounded-lg border border-line">
      <header className="flex flex-wrap items-center justify-between gap-3 border-b border-line px-4 py-2.5">
        <div>
          <h2 className="text-control font-semibold">{title}</h2>
          {description !== undefined && <p className="text-meta text-muted">{description}</p>}
        </div>
        {action}
      </header>
      <div className="px-4 py-3">{children}</div>
    </section>
  );
}
