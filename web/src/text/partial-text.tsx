import { sandboxPath } from "@/api/client";
import { formatBytes } from "./format";

/** Says that a text is shown in part, with a link to the whole. */
export function PartialNote({ sandboxId, blob, bytes }: { sandboxId: string; blob: string | null; bytes: number | null }) {
  if (blob === null && bytes === null) return null;
  return (
    <p className="border-t border-line px-3 py-1.5 text-meta text-muted">
      Only a part is shown{bytes === null ? "" : ` of ${formatBytes(bytes)}`}.{" "}
      {blob !== null && <a className="text-accent underline" href={sandboxPath(sandboxId, `/blobs/${blob}`)} download={`${blob.slice(0, 12)}.txt`}>Download the whole</a>}
    </p>
  );
}
