import { Link } from "@tanstack/react-router";
import { useQuery } from "@tanstack/react-query";
import { api, unwrap } from "@/api/client";
import { useSandboxes } from "@/api/queries";
import type { Intervention } from "@/api/types";
import { FailureNotice } from "@/components/notice";
import { useNow } from "@/shell/clock";
import { formatAge } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";

const REFRESH_MS = 10_000;
const MAX_ROWS = 20;
const MAX_EVIDENCE_LINKS = 5;

const OUTCOMES: Record<string, string> = {
  stopped: "the agent did something else",
  continued: "the agent continued",
  turn_ended: "the turn ended",
};

/** The stored interventions of the guardian, each with the events that it reacted to. */
export function GuardianFeed() {
  const query = useQuery({
    queryKey: ["interventions"],
    refetchInterval: REFRESH_MS,
    queryFn: async () => (await unwrap(api.GET("/api/v1/interventions", { params: { query: { limit: MAX_ROWS } } }))).items,
  });
  const rows = query.data ?? [];
  if (query.error !== null) return <FailureNotice failure={query.error} onRetry={() => void query.refetch()} />;
  if (rows.length === 0) return <p className="text-control text-muted">None.</p>;
  return (
    <ul className="rounded-md border border-line">
      {rows.map((row) => <InterventionRow key={row.id} row={row} />)}
    </ul>
  );
}

function InterventionRow({ row }: { row: Intervention }) {
  const now = useNow(5);
  const title = useSandboxes().data?.find((sandbox) => sandbox.id === row.sandbox_id)?.title ?? row.sandbox_id;
  const reason = (row.held_back ?? "").replaceAll("_", " ");
  const held = reason === "" ? "" : ` (${reason})`;
  const outcome = OUTCOMES[row.outcome ?? ""] ?? "open";
  const message = row.text ?? "";
  return (
    <li className="flex items-baseline gap-3 border-b border-line px-3 py-2 text-control last:border-b-0">
      <span className="min-w-0 flex-1 [overflow-wrap:anywhere]">
        <SafeText text={row.summary} />
        <span className={`ml-2 text-meta ${row.action === "escalate" ? "font-semibold text-attention" : "text-muted"}`}>{row.action}{held}: {outcome}</span>
        {message !== "" && <span className="block border-l-2 border-line pl-2 text-meta"><SafeText text={message} /></span>}
        <span className="block truncate text-meta text-muted">
          <Link to="/sandboxes/$id" params={{ id: row.sandbox_id }} className="hover:underline"><SafeText text={title} /></Link>
          {" · events "}
          {row.evidence.slice(-MAX_EVIDENCE_LINKS).map((seq) => (
            <Link key={seq} to="/sandboxes/$id/replay" params={{ id: row.sandbox_id }} search={{ seq }} className="mr-1 hover:underline">{seq}</Link>
          ))}
        </span>
      </span>
      <time className="shrink-0 text-meta text-muted" dateTime={row.created_at}>{formatAge(row.created_at, now)}</time>
    </li>
  );
}
