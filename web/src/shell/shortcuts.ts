import { useEffect, useRef } from "react";

export interface Shortcut {
  /** Such as `?`, `g h`, `Ctrl+K`, `j`. */
  keys: string;
  run: () => void;
  /** Also acts while the focus is in an input. */
  inInputs?: boolean;
}

const SEQUENCE_MS = 1_200;

interface RegisteredShortcuts {
  shortcuts: readonly Shortcut[];
}

/** Newest last: the innermost view that handles a key wins. */
const registered: RegisteredShortcuts[] = [];
let prefix: { key: string; at: number } | null = null;

export function nameKey(event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey">): string {
  const modifiers = `${event.ctrlKey || event.metaKey ? "Ctrl+" : ""}${event.altKey ? "Alt+" : ""}`;
  const key = event.key.length === 1 && modifiers !== "" ? event.key.toUpperCase() : event.key;
  return modifiers + key;
}

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
}

function findShortcut(keys: string, typing: boolean): Shortcut | undefined {
  for (const group of registered.toReversed()) {
    const found = group.shortcuts.find((each) => each.keys === keys && (!typing || each.inInputs === true));
    if (found !== undefined) return found;
  }
  return undefined;
}

function hasPrefix(key: string): boolean {
  return registered.some((group) => group.shortcuts.some((each) => each.keys.startsWith(`${key} `)));
}

function handleKey(event: KeyboardEvent): void {
  if (event.isComposing || event.defaultPrevented) return;
  const typing = isTyping(event.target);
  const key = nameKey(event);
  const isSequence = prefix !== null && event.timeStamp - prefix.at < SEQUENCE_MS;
  const found = (isSequence && prefix !== null ? findShortcut(`${prefix.key} ${key}`, typing) : undefined) ?? findShortcut(key, typing);
  prefix = null;
  if (found !== undefined) {
    event.preventDefault();
    found.run();
  } else if (!typing && hasPrefix(key)) {
    prefix = { key, at: event.timeStamp };
  }
}

if (typeof document !== "undefined") document.addEventListener("keydown", handleKey);

/** Registers shortcuts while the component is mounted. */
export function useShortcuts(shortcuts: readonly Shortcut[]): void {
  const latest = useRef<RegisteredShortcuts>({ shortcuts });
  useEffect(() => {
    latest.current.shortcuts = shortcuts;
  });
  useEffect(() => {
    const group = latest.current;
    registered.push(group);
    return () => {
      registered.splice(registered.indexOf(group), 1);
    };
  }, []);
}
