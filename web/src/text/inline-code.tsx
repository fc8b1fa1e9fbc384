import { Fragment } from "react";
import { SafeText } from "./safe-text-view";

/** Text of the server with commands in backticks. */
export function InlineCode({ text }: { text: string }) {
  return text.split("`").map((part, index) => (
    <Fragment key={index}>{index % 2 === 1 ? <code className="rounded bg-sunk px-1 font-mono text-code text-text"><SafeText text={part} /></code> : <SafeText text={part} />}</Fragment>
  ));
}
