/** One sample of the server's metrics. */
export interface MetricsSample {
  /** When this browser received it, in milliseconds. */
  at: number;
  values: Map<string, number>;
}

/** Parses the text format of Prometheus. Lines of another form are ignored. */
export function parseMetrics(text: string): Map<string, number> {
  const values = new Map<string, number>();
  for (const line of text.split("\n")) {
    if (line.startsWith("#")) continue;
    const match = /^([a-z_:][a-z0-9_:]*)(?:\{(.*)\})? ([0-9.eE+-]+)$/i.exec(line.trim());
    if (match === null) continue;
    values.set(match[2] === undefined ? (match[1] ?? "") : `${match[1]}{${match[2]}}`, Number(match[3]));
  }
  return values;
}

/** The sum of a metric over all its labels. */
export function total(values: ReadonlyMap<string, number>, name: string): number {
  let sum = 0;
  for (const [key, value] of values) if (key === name || key.startsWith(`${name}{`)) sum += value;
  return sum;
}

/** Change per second between two samples; `null` if the server has restarted between them. */
export function rate(before: MetricsSample, after: MetricsSample, name: string): number | null {
  const change = total(after.values, name) - total(before.values, name);
  const seconds = (after.at - before.at) / 1000;
  return change < 0 || seconds <= 0 ? null : change / seconds;
}
