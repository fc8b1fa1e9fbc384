const PREFIX = "atoll.";

/** Reads a setting of this browser. Storage may be off; then nothing is stored. */
export function readStored(name: string): string | null {
  try {
    return localStorage.getItem(PREFIX + name);
  } catch {
    return null;
  }
}

export function writeStored(name: string, value: string | null): void {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, value);
  } catch {
    // The setting lasts until the page is closed.
  }
}
