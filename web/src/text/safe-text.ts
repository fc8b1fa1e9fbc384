/** A part of a text: visible characters, or one character that is invisible or changes the direction of the text. */
export interface TextPart {
  text: string;
  /** The name of a marked character, such as `U+202E`. */
  mark: string | null;
}

/** Directional and invisible characters that can make a command or a path look like another one. */
const DECEPTIVE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

/** Splits text so that deceptive characters can be shown as marks. */
export function splitDeceptive(text: string): TextPart[] {
  const parts: TextPart[] = [];
  let start = 0;
  for (const match of text.matchAll(DECEPTIVE)) {
    const character = match[0];
    // Emoji use variation selectors.
    if (character === "\ufe0f" || character === "\ufe0e") continue;
    if (match.index > start) parts.push({ text: text.slice(start, match.index), mark: null });
    parts.push({ text: character, mark: codePointName(character) });
    start = match.index + character.length;
  }
  if (start < text.length) parts.push({ text: text.slice(start), mark: null });
  return parts;
}

export function hasDeceptive(text: string): boolean {
  return splitDeceptive(text).some((part) => part.mark !== null);
}

function codePointName(character: string): string {
  return `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Returns the URL if a click on it may open it: only http and https, without credentials. */
export function safeUrl(url: string): string | null {
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch {
    return null;
  }
  const isWeb = parsed.protocol === "http:" || parsed.protocol === "https:";
  return isWeb && parsed.username === "" && parsed.password === "" ? parsed.href : null;
}
