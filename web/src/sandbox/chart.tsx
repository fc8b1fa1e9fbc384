import "uplot/dist/uPlot.min.css";
import { useEffect, useRef } from "react";
import UPlot from "uplot";
import { useTheme } from "@/shell/theme";

interface ChartProps {
  label: string;
  /** Seconds since 1970, ascending. */
  times: readonly number[];
  values: readonly (number | null)[];
  format: (value: number) => string;
  /** The upper end of the scale, such as a limit. */
  max?: number | null;
}

const HEIGHT = 96;

function formatTime(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
}

/** A line over time. Its newest value is also in the text beside it. */
export function Chart({ label, times, values, format, max = null }: ChartProps) {
  const container = useRef<HTMLDivElement>(null);
  const plot = useRef<UPlot | null>(null);
  const { isDark } = useTheme();
  const formatter = useRef(format);
  useEffect(() => {
    formatter.current = format;
  });

  useEffect(() => {
    const element = container.current;
    if (element === null) return;
    const style = getComputedStyle(document.documentElement);
    const token = (name: string) => style.getPropertyValue(name).trim();
    const axis: UPlot.Axis = { stroke: token("--muted"), grid: { stroke: token("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const chart = new UPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { show: false },
        scales: { y: { range: (_, __, top) => [0, Math.max(max ?? 0, top || 1)] } },
        axes: [{ ...axis, size: 24, space: 110, values: (_, splits) => splits.map(formatTime) }, { ...axis, size: 58, splits: (_, __, ___, top) => [0, top / 2, top], values: (_, splits) => splits.map((value) => formatter.current(value)) }],
        series: [{}, { stroke: token("--accent"), width: 1.5, fill: token("--accent-tint"), points: { show: false } }],
      },
      [[], []],
      element,
    );
    plot.current = chart;
    const observer = new ResizeObserver(() => { chart.setSize({ width: element.clientWidth, height: HEIGHT }); });
    observer.observe(element);
    return () => {
      observer.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [isDark, max]);

  useEffect(() => {
    plot.current?.setData([[...times], [...values]]);
  }, [times, values, isDark, max]);

  return <div ref={container} role="img" aria-label={label} className="w-full" />;
}
