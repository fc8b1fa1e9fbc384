/** "12 s", "3 min", "2 h 5 min", "4 d". */
export function formatDuration(milliseconds: number): string {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 === 0 ? `${hours} h` : `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d`;
}

/** A duration of a step: with tenths below ten seconds. */
export function formatStepDuration(milliseconds: number): string {
  if (milliseconds < 100) return "";
  return milliseconds < 10_000 ? `${(milliseconds / 1000).toFixed(1)} s` : formatDuration(milliseconds);
}

/** "now", "3 min ago", or a date for times more than a week ago. */
export function formatAge(at: string, now: number): string {
  const age = now - Date.parse(at);
  if (Number.isNaN(age)) return "";
  if (age < 5_000) return "now";
  if (age < 7 * 86_400_000) return `${formatDuration(age).replace(/ h \d+ min$/, " h")} ago`;
  return new Date(at).toLocaleDateString(undefined, { year: "numeric", month: "short", day: "numeric" });
}

export function formatClock(at: string): string {
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? "" : date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

export function formatDateTime(at: string): string {
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? "" : date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

export function formatCost(usd: number): string {
  if (usd === 0) return "$0";
  if (usd < 0.01) return "< $0.01";
  return `$${usd < 100 ? usd.toFixed(2) : Math.round(usd).toLocaleString("en")}`;
}

export function formatBytes(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let value = bytes / 1000;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function formatCount(count: number): string {
  if (count < 1000) return `${count}`;
  return count < 999_500 ? `${(count / 1000).toFixed(count < 9950 ? 1 : 0)}k` : `${(count / 1_000_000).toFixed(1)}M`;
}

/** "1 file", "3 files". */
export function plural(count: number, word: string, words = `${word}s`): string {
  return `${count.toLocaleString("en")} ${count === 1 ? word : words}`;
}

export function capitalize(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The first line of a text, shortened. */
export function firstLine(text: string, limit = 140): string {
  const line = text.trimStart().split("\n", 1)[0]?.trimEnd() ?? "";
  return line.length > limit ? `${line.slice(0, limit - 1)}…` : line;
}
