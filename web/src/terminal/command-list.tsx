import { useRef, useState } from "react";
import { useVirtualizer } from "@tanstack/react-virtual";
import { ToolCard } from "@/timeline/tool-card";
import type { ToolRow } from "@/timeline/rows";

/** The agent's commands, the newest last. */
export function CommandList({ commands, sandboxId }: { commands: readonly ToolRow[]; sandboxId: string }) {
  const scroller = useRef<HTMLDivElement>(null);
  const [open, setOpen] = useState<ReadonlyMap<string, boolean>>(new Map());
  const virtualizer = useVirtualizer({
    count: commands.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => 40,
    getItemKey: (index) => commands[index]?.key ?? index,
    gap: 8,
    paddingStart: 12,
    paddingEnd: 12,
    anchorTo: "end",
    followOnAppend: true,
    scrollEndThreshold: 60,
  });
  return (
    <div ref={scroller} tabIndex={0} role="region" aria-label="Commands of the agent" className="scroll-area min-h-0 flex-1">
      <div className="relative" style={{ height: virtualizer.getTotalSize() }}>
        {virtualizer.getVirtualItems().map((item) => {
          const command = commands[item.index];
          if (command === undefined) return null;
          return (
            <div key={item.key} data-index={item.index} ref={virtualizer.measureElement} className="absolute top-0 left-0 w-full px-3" style={{ transform: `translateY(${item.start}px)` }}>
              <ToolCard
                row={command}
                sandboxId={sandboxId}
                isOpen={open.get(command.key) ?? (command.state !== "done" || item.index === commands.length - 1)}
                onToggle={(key, isOpen) => { setOpen(new Map(open).set(key, isOpen)); }}
                renderChildren={() => null}
              />
            </div>
          );
        })}
      </div>
    </div>
  );
}
