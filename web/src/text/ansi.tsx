import { memo } from "react";
import anser from "anser";
import { SafeText } from "./safe-text-view";

/** Colours that are readable on both backgrounds: the tokens of the page. */
const COLOURS: Record<string, string> = {
  "ansi-red": "text-bad",
  "ansi-bright-red": "text-bad",
  "ansi-green": "text-ok",
  "ansi-bright-green": "text-ok",
  "ansi-yellow": "text-attention",
  "ansi-bright-yellow": "text-attention",
  "ansi-blue": "text-accent",
  "ansi-bright-blue": "text-accent",
  "ansi-cyan": "text-accent",
  "ansi-bright-cyan": "text-accent",
  "ansi-magenta": "text-paused",
  "ansi-bright-magenta": "text-paused",
  "ansi-black": "text-muted",
  "ansi-bright-black": "text-muted",
};

/** Escape sequences other than colours, such as titles and cursor movements. */
const OTHER_SEQUENCES = /\u001b(?:\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\[[0-9;?]*[A-Za-ln-z]|[()][A-Z0-9]|[=>78])/g;

/** Output of a command, with its colours and without other effects. */
export const AnsiText = memo(function AnsiText({ text }: { text: string }) {
  const clean = applyCarriageReturns(text.replace(OTHER_SEQUENCES, ""));
  if (!clean.includes("\u001b")) return <SafeText text={clean} />;
  const parts = anser.ansiToJson(clean, { use_classes: true, remove_empty: true });
  return parts.map((part, index) => (
    <span key={index} className={`${COLOURS[part.fg] ?? ""} ${part.decorations.includes("bold") ? "font-semibold" : ""}`}>
      <SafeText text={part.content} />
    </span>
  ));
});

/** A carriage return starts the line again, as progress bars use it. */
function applyCarriageReturns(text: string): string {
  if (!text.includes("\r")) return text;
  return text
    .replaceAll("\r\n", "\n")
    .split("\n")
    .map((line) => line.slice(line.lastIndexOf("\r", line.length - 2) + 1).replace("\r", ""))
    .join("\n");
}
