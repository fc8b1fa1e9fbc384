import { useEffect, useState } from "react";
import { ExternalLink, Eye, RefreshCw, Trash2 } from "lucide-react";
import { useProviders } from "@/api/queries";
import type { Sandbox } from "@/api/types";
import { Button, IconButton } from "@/components/button";
import { EmptyState, FailureNotice, Skeleton } from "@/components/notice";
import { useAction } from "@/components/use-action";
import { feed } from "@/events/feed";
import { hasEnded } from "@/sandboxes/status";
import { formatDateTime } from "@/text/format";
import { CopyButton } from "@/text/code-block";
import { SafeText } from "@/text/safe-text-view";
import { createPreview, refreshPreviews, revokePreview, usePorts, usePreviews, type CreatedPreview } from "./preview-queries";

/** Safari resolves no names below `localhost`. */
function cannotResolve(url: string): boolean {
  const isSafari = navigator.userAgent.includes("Safari/") && !/Chrom|Android/.test(navigator.userAgent);
  return isSafari && new URL(url).hostname.endsWith(".localhost");
}

/** The programs that listen in the sandbox, each on an origin of its own. */
export function PreviewPanel({ sandbox }: { sandbox: Sandbox }) {
  const isLive = sandbox.state === "running";
  const ports = usePorts(sandbox.id, isLive);
  const previews = usePreviews(sandbox.id, isLive);
  const opening = useAction("Preview not opened");
  const revoking = useAction("Not revoked");
  const [current, setCurrent] = useState<CreatedPreview | null>(null);
  useEffect(
    () => feed.onEvents((id, events) => {
      if (id === sandbox.id && events.some((event) => event.type.startsWith("preview."))) refreshPreviews(id);
    }),
    [sandbox.id],
  );
  const provider = useProviders().data?.find((each) => each.name === sandbox.provider);
  if (provider?.capabilities.ports === "none") return <EmptyState icon={<Eye size={28} />} title="No previews">The provider {provider.name} cannot connect to ports of its sandboxes.</EmptyState>;
  if (hasEnded(sandbox)) return <EmptyState icon={<Eye size={28} />} title="Nothing listens any more">The sandbox has ended.</EmptyState>;
  if (!isLive) return <EmptyState icon={<Eye size={28} />} title="The sandbox is not running yet">Programs that listen on a port appear here.</EmptyState>;
  if (ports.error !== null) return <div className="p-3"><FailureNotice failure={ports.error} onRetry={() => void ports.refetch()} /></div>;
  if (ports.data === undefined) return <Skeleton label="Loading the ports" />;
  const open = (port: number) => void opening.run(async () => { setCurrent(await createPreview(sandbox.id, port)); });
  const others = (previews.data ?? []).filter((preview) => preview.id !== current?.id);

  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <ul className="shrink-0 border-b border-line">
        {ports.data.map((port) => (
          <li key={port.port} className="flex min-h-11 items-center gap-3 border-b border-line px-3 last:border-b-0">
            <span className="font-mono text-code font-semibold">{port.port}</span>
            <span className="min-w-0 flex-1 truncate text-control text-muted"><SafeText text={port.program ?? "unknown program"} /></span>
            <Button size="small" isBusy={opening.isBusy} aria-pressed={current?.port === port.port} onClick={() => { open(port.port); }}>{current?.port === port.port ? "Shown below" : "Show"}</Button>
          </li>
        ))}
      </ul>
      {ports.data.length === 0 && <EmptyState icon={<Eye size={28} />} title="No program listens on a port">Ask the agent to start the app, or start it in a shell. It appears here by itself.</EmptyState>}
      {current !== null && <PreviewFrame key={current.id} sandboxId={sandbox.id} preview={current} onRevoked={() => { setCurrent(null); }} />}
      {others.length > 0 && (
        <section className="scroll-area max-h-40 shrink-0 border-t border-line px-3 py-2">
          <h3 className="mb-1 text-meta font-semibold text-muted">Other links to this sandbox</h3>
          <ul>
            {others.map((preview) => (
              <li key={preview.id} className="flex items-center gap-3 text-control">
                <span className="min-w-0 flex-1">Port {preview.port}, until {formatDateTime(preview.expires_at)}</span>
                <Button size="small" tone="quiet" isBusy={revoking.isBusy} onClick={() => void revoking.run(() => revokePreview(sandbox.id, preview.id))}>Revoke</Button>
              </li>
            ))}
          </ul>
        </section>
      )}
    </div>
  );
}

function PreviewFrame({ sandboxId, preview, onRevoked }: { sandboxId: string; preview: CreatedPreview; onRevoked: () => void }) {
  const [version, setVersion] = useState(0);
  const revoking = useAction("Not revoked");
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <div className="flex min-h-10 shrink-0 items-center gap-1 border-b border-line bg-raised px-2">
        <IconButton label="Load again" size="small" onClick={() => { setVersion(version + 1); }}><RefreshCw size={15} aria-hidden /></IconButton>
        <p className="min-w-0 flex-1 truncate font-mono text-code" title={`${preview.url} until ${formatDateTime(preview.expires_at)}`}>{preview.url}</p>
        <CopyButton text={preview.url} label="Copy the address" />
        <a href={preview.url} target="_blank" rel="noopener noreferrer" title="Open in a new tab" aria-label="Open in a new tab" className="flex size-7 items-center justify-center rounded-md text-muted hover:bg-sunk max-md:size-9"><ExternalLink size={15} aria-hidden /></a>
        <IconButton label="Revoke this preview" size="small" isBusy={revoking.isBusy} onClick={() => void revoking.run(async () => { await revokePreview(sandboxId, preview.id); onRevoked(); })}><Trash2 size={15} aria-hidden /></IconButton>
      </div>
      <p className="border-b border-line px-3 py-1 text-meta text-muted">
        This is a program of the sandbox, not Atoll. Do not type passwords into it.
        {cannotResolve(preview.url) && " Safari cannot open addresses below localhost: use another browser, or configure a domain for previews."}
      </p>
      <iframe
        key={version}
        title={`Preview of port ${preview.port}`}
        src={preview.url}
        sandbox="allow-scripts allow-forms allow-same-origin allow-modals allow-downloads"
        referrerPolicy="no-referrer"
        className="min-h-0 w-full flex-1 bg-[#ffffff]"
      />
    </div>
  );
}
