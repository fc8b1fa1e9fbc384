import { useSyncExternalStore } from "react";
import { readStored, writeStored } from "./stored";

export type ThemeChoice = "system" | "light" | "dark";

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();
let choice = parseChoice(readStored("theme"));

function parseChoice(text: string | null): ThemeChoice {
  return text === "light" || text === "dark" ? text : "system";
}

export function isDark(): boolean {
  return choice === "system" ? systemDark.matches : choice === "dark";
}

export function applyTheme(): void {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  for (const listener of listeners) listener();
}

export function chooseTheme(next: ThemeChoice): void {
  choice = next;
  writeStored("theme", next === "system" ? null : next);
  applyTheme();
}

systemDark.addEventListener("change", applyTheme);

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useTheme(): { choice: ThemeChoice; isDark: boolean } {
  const current = useSyncExternalStore(subscribe, () => `${choice}:${isDark()}`);
  return { choice: parseChoice(current.split(":")[0] ?? null), isDark: current.endsWith("true") };
}
