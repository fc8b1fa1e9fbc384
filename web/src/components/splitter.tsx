import { useRef, useState, type KeyboardEvent, type PointerEvent } from "react";
import { readStored, writeStored } from "@/shell/stored";

interface SplitSize {
  /** Width of the right pane in percent. */
  percent: number;
  handle: {
    onPointerDown: (event: PointerEvent<HTMLDivElement>) => void;
    onKeyDown: (event: KeyboardEvent<HTMLDivElement>) => void;
  };
}

const MIN = 24;
const MAX = 76;

/** The width of a right pane that users can drag. It survives a reload. */
export function useSplit(name: string, initial: number): SplitSize {
  const [percent, setPercent] = useState(() => clamp(Number(readStored(`split.${name}`) ?? initial)));
  const latest = useRef(percent);
  const change = (value: number) => {
    latest.current = clamp(value);
    setPercent(latest.current);
  };
  return {
    percent,
    handle: {
      onPointerDown: (event) => {
        const container = event.currentTarget.parentElement;
        if (container === null) return;
        event.preventDefault();
        const handle = event.currentTarget;
        handle.setPointerCapture(event.pointerId);
        const box = container.getBoundingClientRect();
        const move = (moved: globalThis.PointerEvent) => {
          change(((box.right - moved.clientX) / box.width) * 100);
        };
        const end = () => {
          handle.removeEventListener("pointermove", move);
          writeStored(`split.${name}`, String(latest.current));
        };
        handle.addEventListener("pointermove", move);
        handle.addEventListener("lostpointercapture", end, { once: true });
      },
      onKeyDown: (event) => {
        if (event.key === "ArrowLeft") change(percent + 2);
        else if (event.key === "ArrowRight") change(percent - 2);
        else return;
        event.preventDefault();
        writeStored(`split.${name}`, String(latest.current));
      },
    },
  };
}

export function SplitHandle({ split, label }: { split: SplitSize; label: string }) {
  return (
    <div
      role="separator"
      aria-orientation="vertical"
      aria-label={label}
      aria-valuenow={Math.round(split.percent)}
      aria-valuemin={MIN}
      aria-valuemax={MAX}
      tabIndex={0}
      {...split.handle}
      className="relative z-10 -mx-1 hidden w-2 shrink-0 cursor-col-resize touch-none after:absolute after:inset-y-0 after:left-1/2 after:w-px after:bg-line hover:after:w-0.5 hover:after:bg-accent lg:block"
    />
  );
}

function clamp(percent: number): number {
  return Number.isFinite(percent) ? Math.min(MAX, Math.max(MIN, percent)) : 45;
}
