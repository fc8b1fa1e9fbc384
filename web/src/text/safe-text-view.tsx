import { memo } from "react";
import { splitDeceptive } from "./safe-text";

/** Shows text from an agent as text, with marks for invisible and directional characters. */
export const SafeText = memo(function SafeText({ text }: { text: string }) {
  const parts = splitDeceptive(text);
  if (parts.every((part) => part.mark === null)) return <bdi>{text}</bdi>;
  return (
    <bdi>
      {parts.map((part, index) =>
        part.mark === null ? (
          part.text
        ) : (
          <span
            key={index}
            title={`${part.mark} is invisible or changes the direction of text`}
            className="mx-px rounded-[3px] bg-attention-tint px-[3px] font-mono text-[0.8em] text-attention"
          >
            {part.mark}
          </span>
        ),
      )}
    </bdi>
  );
});
