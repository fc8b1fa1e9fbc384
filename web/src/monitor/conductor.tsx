import { type ReactNode } from "react";
import { Link } from "@tanstack/react-router";
import { useQuery } from "@tanstack/react-query";
import { api, unwrap } from "@/api/client";
import type { components } from "@/api/generated/schema";
import { FailureNotice, Skeleton } from "@/components/notice";
import { useNow } from "@/shell/clock";
import { formatAge } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { phaseCounts, shownAnomaly } from "./conductor-status";

type MonitoringStatus = components["schemas"]["MonitoringStatus"];
type MonitoredAgent = components["schemas"]["MonitoredAgent"];

const REFRESH_INTERVAL_MS = 5_000;

/** What each agent does, and how the agents fit together. */
export function Conductor() {
  const status = useQuery({
    queryKey: ["monitoring"],
    refetchInterval: REFRESH_INTERVAL_MS,
    queryFn: () => unwrap(api.GET("/api/v1/sandboxes/monitoring/status")),
  });
  return (
    <section className="min-w-0" aria-labelledby="conductor">
      <h2 id="conductor" className="mb-2 flex items-baseline gap-3 text-control font-semibold">
        Conductor
        {status.data?.coherence != null && <span className="text-meta font-normal text-muted">coherence {status.data.coherence.toFixed(2)}</span>}
      </h2>
      {status.error !== null && <FailureNotice failure={status.error} onRetry={() => void status.refetch()} />}
      {status.data === undefined && status.error === null && <Skeleton lines={2} label="Loading the phases" />}
      {status.data !== undefined && <ConductorStatus status={status.data} />}
    </section>
  );
}

function ConductorStatus({ status }: { status: MonitoringStatus }) {
  if (status.agents.length === 0) return <p className="text-control text-muted">No agent is at work.</p>;
  return (
    <div className="space-y-3">
      <p className="text-control text-muted">{phaseCounts(status.phases)}</p>
      {status.findings.length > 0 && (
        <ul className="rounded-md border border-line" aria-label="Findings">
          {status.findings.map((finding) => (
            <li key={`${finding.kind} ${finding.sandbox_ids.join(" ")}`} className="border-b border-line px-3 py-2 text-control last:border-b-0">
              <span className="text-attention [overflow-wrap:anywhere]"><SafeText text={finding.text} /></span>
              <span className="flex flex-wrap gap-x-3 text-meta text-muted">
                {finding.sandbox_ids.map((id) => <SandboxLink key={id} id={id} agents={status.agents} />)}
              </span>
            </li>
          ))}
        </ul>
      )}
      <div className="scroll-area rounded-md border border-line" tabIndex={0} role="region" aria-label="Phases of the agents">
        <table className="w-full min-w-[44rem] text-control">
          <thead>
            <tr className="border-b border-line bg-raised text-left text-meta text-muted">
              {["Sandbox", "Phase", "Last progress", "Newest files", "Errors", "Anomaly"].map((name) => <th key={name} className="px-3 py-1.5 font-normal">{name}</th>)}
            </tr>
          </thead>
          <tbody>{status.agents.map((agent) => <AgentPhase key={agent.sandbox_id} agent={agent} agents={status.agents} />)}</tbody>
        </table>
      </div>
    </div>
  );
}

function AgentPhase({ agent, agents }: { agent: MonitoredAgent; agents: readonly MonitoredAgent[] }) {
  const now = useNow(5);
  const cell = (content: ReactNode, extra = "") => <td className={`px-3 py-2 ${extra}`}>{content}</td>;
  return (
    <tr className="border-b border-line last:border-b-0">
      {cell(<SandboxLink id={agent.sandbox_id} agents={agents} />, "max-w-64")}
      {cell(agent.stuck == null ? agent.phase : `${agent.phase}, stuck`, agent.stuck == null ? "" : "text-attention")}
      {cell(agent.last_progress_at == null ? "" : formatAge(agent.last_progress_at, now), "whitespace-nowrap")}
      {cell(<span className="block truncate"><SafeText text={(agent.files ?? []).slice(0, 3).join(", ")} /></span>, "max-w-72")}
      {cell(`${Math.round(agent.anomaly.error_rate * 100)} %`)}
      {cell(shownAnomaly(agent.anomaly), agent.anomaly.in_a_row >= 3 ? "text-attention" : "")}
    </tr>
  );
}

function SandboxLink({ id, agents }: { id: string; agents: readonly MonitoredAgent[] }) {
  const title = agents.find((agent) => agent.sandbox_id === id)?.title;
  return <Link to="/sandboxes/$id" params={{ id }} className="block truncate hover:underline"><SafeText text={title === undefined || title === "" ? id : title} /></Link>;
}
