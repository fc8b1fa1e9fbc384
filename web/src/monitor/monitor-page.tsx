import { useEffect, useMemo, useState, type ReactNode } from "react";
import { Link } from "@tanstack/react-router";
import { useQuery } from "@tanstack/react-query";
import { Activity } from "lucide-react";
import { api, fetchMetrics, unwrap } from "@/api/client";
import { useProviders, useSandboxes } from "@/api/queries";
import type { Sandbox, StoredEvent } from "@/api/types";
import { EmptyState, FailureNotice, Skeleton } from "@/components/notice";
import { Page } from "@/components/page";
import { feed } from "@/events/feed";
import { Chart } from "@/sandbox/chart";
import { Meter } from "@/sandbox/meters";
import { hasEnded, statusOf } from "@/sandboxes/status";
import { StatusBadge } from "@/sandboxes/status-badge";
import { useStep } from "@/sandboxes/use-first-step";
import { useNow } from "@/shell/clock";
import { useTitle } from "@/shell/title";
import { formatAge, formatBytes, formatClock, formatCost, formatDuration, plural } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { describeNotice } from "@/timeline/notices";
import { Conductor } from "./conductor";
import { GuardianFeed } from "./guardian-feed";
import { parseMetrics, rate, total, type MetricsSample } from "./metrics";

const SAMPLE_INTERVAL_MS = 5_000;
const RESOURCE_INTERVAL_MS = 15_000;
const MAX_SAMPLES = 120;
/** Rows above this number show no resources, so that the page stays light for the server. */
const MAX_MEASURED = 24;
/** A worker sends a heartbeat every 30 s. */
const SILENT_AFTER_MS = 75_000;

/** Agents now at work, the server's figures, and interventions since the page was opened. */
export function MonitorPage() {
  useTitle("Monitor");
  const sandboxes = useSandboxes();
  const live = useMemo(() => (sandboxes.data ?? []).filter((row) => !hasEnded(row)).sort((a, b) => (a.created_at < b.created_at ? 1 : -1)), [sandboxes.data]);
  return (
    <Page title="Monitor" width="max-w-7xl">
      {sandboxes.error !== null && <FailureNotice failure={sandboxes.error} onRetry={() => void sandboxes.refetch()} />}
      {sandboxes.data === undefined && sandboxes.error === null && <Skeleton label="Loading the agents" />}
      {sandboxes.data !== undefined && <AgentTable rows={live} />}
      <Conductor />
      <ServerFigures />
      <div className="grid gap-6 lg:grid-cols-2">
        <Section title="The guardian" note="what it found and did">
          <GuardianFeed />
        </Section>
        <Interventions />
        <Providers />
      </div>
    </Page>
  );
}

function Section({ title, note, children }: { title: string; note?: string; children: ReactNode }) {
  return (
    <section className="min-w-0">
      <h2 className="mb-2 flex items-baseline gap-3 text-control font-semibold">{title}{note !== undefined && <span className="text-meta font-normal text-muted">{note}</span>}</h2>
      {children}
    </section>
  );
}

/** On a phone, the first column holds the last step. */
const WIDE = "max-md:hidden";
const COLUMNS = [["Sandbox", ""], ["State", ""], ["Last step", WIDE], ["Health", WIDE], ["CPU", WIDE], ["Memory", WIDE], ["Cost", ""]] as const;

function AgentTable({ rows }: { rows: readonly Sandbox[] }) {
  return (
    <Section title={`Agents: ${rows.length}`}>
      {rows.length === 0 ? (
        <EmptyState icon={<Activity size={28} />} title="No agent is at work">Each running sandbox has a row here.</EmptyState>
      ) : (
        <div className="scroll-area rounded-md border border-line" tabIndex={0} role="region" aria-label="Agents">
          <table className="w-full text-control md:min-w-[52rem]">
            <thead>
              <tr className="border-b border-line bg-raised text-left text-meta text-muted">
                {COLUMNS.map(([name, look]) => <th key={name} className={`px-3 py-1.5 font-normal ${look}`}>{name}</th>)}
              </tr>
            </thead>
            <tbody>{rows.map((row, index) => <AgentRow key={row.id} sandbox={row} isMeasured={index < MAX_MEASURED} />)}</tbody>
          </table>
        </div>
      )}
    </Section>
  );
}

function AgentRow({ sandbox, isMeasured }: { sandbox: Sandbox; isMeasured: boolean }) {
  const now = useNow(1);
  const step = useStep(sandbox);
  const resources = useQuery({
    queryKey: ["resources", sandbox.id],
    enabled: isMeasured && sandbox.state === "running",
    refetchInterval: RESOURCE_INTERVAL_MS,
    queryFn: () => unwrap(api.GET("/api/v1/sandboxes/{id}/resources", { params: { path: { id: sandbox.id } } })),
  });
  const sample = resources.data?.now ?? null;
  return (
    <tr className="border-b border-line last:border-b-0">
      <td className="max-w-64 px-3 py-2 max-md:max-w-36">
        <Link to="/sandboxes/$id" params={{ id: sandbox.id }} className="block truncate font-semibold hover:underline"><SafeText text={sandbox.title ?? sandbox.id} /></Link>
        <span className="text-meta text-muted"><SafeText text={sandbox.agent ?? "no agent"} /></span>
        {step !== null && <span className="block truncate text-meta text-muted md:hidden"><SafeText text={step.text} /></span>}
      </td>
      <td className="px-3 py-2 max-md:w-px">
        <StatusBadge sandbox={sandbox} />
        <span className="mt-0.5 block text-meta md:hidden"><Health sandbox={sandbox} now={now} /></span>
      </td>
      <td className={`max-w-72 px-3 py-2 ${WIDE}`}>
        <span className="block truncate">{step === null ? "" : <SafeText text={step.text} />}</span>
        {step !== null && <span className="text-meta text-muted">{formatAge(step.at, now)}</span>}
      </td>
      <td className={`px-3 py-2 whitespace-nowrap ${WIDE}`}><Health sandbox={sandbox} now={now} /></td>
      <td className={`px-3 py-2 whitespace-nowrap ${WIDE}`}>{sample?.cpu == null ? "" : sample.cpu.toFixed(2)}</td>
      <td className={`px-3 py-2 whitespace-nowrap ${WIDE}`}>{sample === null ? "" : formatBytes(sample.memory_bytes)}</td>
      <td className="px-3 py-2 whitespace-nowrap">{sandbox.cost.model == null ? "unknown" : formatCost(sandbox.cost.model)}</td>
    </tr>
  );
}

function Health({ sandbox, now }: { sandbox: Sandbox; now: number }) {
  if (sandbox.last_heartbeat == null) return <span className="text-muted">no heartbeat yet</span>;
  const age = now - Date.parse(sandbox.last_heartbeat);
  const isSilent = age > SILENT_AFTER_MS && statusOf(sandbox).icon !== "paused";
  return <span className={isSilent ? "text-attention" : "text-muted"}>{isSilent ? `silent for ${formatDuration(age)}` : `heartbeat ${formatDuration(age)} ago`}</span>;
}

function useMetrics(): { samples: readonly MetricsSample[]; failure: unknown } {
  const [samples, setSamples] = useState<readonly MetricsSample[]>([]);
  const query = useQuery({
    queryKey: ["metrics"],
    refetchInterval: SAMPLE_INTERVAL_MS,
    retry: false,
    queryFn: async (): Promise<MetricsSample> => ({ at: Date.now(), values: parseMetrics(await fetchMetrics()) }),
  });
  const newest = query.data;
  if (newest !== undefined && samples.at(-1) !== newest) setSamples([...samples.slice(-MAX_SAMPLES + 1), newest]);
  return { samples, failure: query.error };
}

function ServerFigures() {
  const { samples, failure } = useMetrics();
  const now = samples.at(-1);
  const before = samples.at(-2);
  if (failure !== null && now === undefined) return <Section title="Server"><FailureNotice failure={failure} /></Section>;
  if (now === undefined) return <Section title="Server"><Skeleton lines={2} label="Loading the figures" /></Section>;
  const perSecond = samples.slice(1).map((sample, index) => rate(samples[index] ?? sample, sample, "atoll_events_stored_total"));
  const stored = before === undefined ? null : rate(before, now, "atoll_events_stored_total");
  const of = (name: string) => total(now.values, name);
  const waiting = Math.max(0, of("atoll_messages_queued_total") - of("atoll_messages_acknowledged_total"));
  return (
    <>
      <HostFigures of={of} />
      <Section title="Server" note={`sampled at ${formatClock(new Date(now.at).toISOString())}`}>
        <div className="grid grid-cols-2 gap-px overflow-hidden rounded-md border border-line bg-line md:grid-cols-4">
          <Figure name="Events per second" value={stored === null ? "…" : stored.toFixed(1)} />
          <Figure name="Events stored" value={of("atoll_events_stored_total").toLocaleString("en")} note="since the start" />
          <Figure name="Events rejected" value={of("atoll_events_rejected_total").toLocaleString("en")} isBad={of("atoll_events_rejected_total") > 0} />
          <Figure name="Events dropped" value={of("atoll_events_dropped_total").toLocaleString("en")} isBad={of("atoll_events_dropped_total") > 0} note="over a log's quota" />
          <Figure name="Workers connected" value={of("atoll_worker_streams").toLocaleString("en")} />
          <Figure name="Live readers" value={of("atoll_readers").toLocaleString("en")} note="pages, terminals, clients" />
          <Figure name="Messages not delivered" value={waiting.toLocaleString("en")} note="queued since the start" />
          <Figure name="Jobs failed" value={of("atoll_jobs_failed_total").toLocaleString("en")} isBad={of("atoll_jobs_failed_total") > 0} note={`${of("atoll_jobs_done_total").toLocaleString("en")} done`} />
        </div>
        {perSecond.length > 2 && (
          <div className="mt-3">
            <Chart label="Events stored per second over time" times={samples.slice(1).map((sample) => sample.at / 1000)} values={perSecond} format={(value) => value.toFixed(1)} max={1} />
          </div>
        )}
      </Section>
    </>
  );
}

/** Load, memory and disk of the machine that the server and its local sandboxes share. */
function HostFigures({ of }: { of: (name: string) => number }) {
  const [load, processors, memory, disk] = [of("atoll_host_load"), of("atoll_host_processors"), of("atoll_host_memory_bytes"), of("atoll_host_disk_bytes")];
  if (processors === 0) return null;
  const [memoryUsed, diskUsed] = [memory - of("atoll_host_memory_available_bytes"), disk - of("atoll_host_disk_available_bytes")];
  return (
    <Section title="Machine of the server">
      <div className="grid gap-px overflow-hidden rounded-md border border-line bg-line md:grid-cols-3">
        <div className="bg-bg px-3 py-2.5"><Meter label="Load" value={`${load.toFixed(1)} on ${plural(processors, "processor")}`} share={load / processors} title="Average over the last minute" /></div>
        <div className="bg-bg px-3 py-2.5"><Meter label="Memory" value={`${formatBytes(memoryUsed)} of ${formatBytes(memory)}`} share={memory > 0 ? memoryUsed / memory : null} /></div>
        <div className="bg-bg px-3 py-2.5"><Meter label="Disk" value={`${formatBytes(diskUsed)} of ${formatBytes(disk)}`} share={disk > 0 ? diskUsed / disk : null} title="The file system with the data directory" /></div>
      </div>
    </Section>
  );
}

function Figure({ name, value, note, isBad = false }: { name: string; value: string; note?: string; isBad?: boolean }) {
  return (
    <div className="bg-bg px-3 py-2.5">
      <p className="text-meta text-muted">{name}</p>
      <p className={`text-title font-semibold ${isBad ? "text-bad" : ""}`}>{value}</p>
      {note !== undefined && <p className="text-meta text-muted">{note}</p>}
    </div>
  );
}

const MAX_INTERVENTIONS = 50;

/** Limits and losses, as they happen. */
function Interventions() {
  const [events, setEvents] = useState<readonly StoredEvent[]>([]);
  const rows = useSandboxes().data ?? [];
  const now = useNow(5);
  useEffect(
    () => feed.onEvents((_, fresh) => {
      const found = fresh.filter((event) => /^(limit\.(warned|paused)|worker\.(lost|rejected)|network\.refused|model\.refused|log\.)/.test(event.type));
      if (found.length > 0) setEvents((before) => [...found.toReversed(), ...before].slice(0, MAX_INTERVENTIONS));
    }),
    [],
  );
  return (
    <Section title="Limits and losses" note="since you opened this page">
      {events.length === 0 ? <p className="text-control text-muted">None.</p> : (
        <ul className="rounded-md border border-line">
          {events.map((event) => {
            const notice = describeNotice(event);
            return (
              <li key={event.id} className="flex items-baseline gap-3 border-b border-line px-3 py-2 text-control last:border-b-0">
                <span className="min-w-0 flex-1 [overflow-wrap:anywhere]">
                  <SafeText text={notice?.text ?? event.type} />
                  <Link to="/sandboxes/$id" params={{ id: event.sandbox_id }} className="block truncate text-meta text-muted hover:underline"><SafeText text={rows.find((row) => row.id === event.sandbox_id)?.title ?? event.sandbox_id} /></Link>
                </span>
                <time className="shrink-0 text-meta text-muted" dateTime={event.at}>{formatAge(event.at, now)}</time>
              </li>
            );
          })}
        </ul>
      )}
    </Section>
  );
}

function Providers() {
  const providers = useProviders();
  return (
    <Section title="Providers">
      {providers.error !== null && <FailureNotice failure={providers.error} />}
      <ul className="rounded-md border border-line">
        {providers.data?.map((provider) => (
          <li key={provider.name} className="border-b border-line px-3 py-2 text-control last:border-b-0">
            <p className="flex items-baseline gap-2">
              <span className="font-semibold">{provider.name}</span>
              <span className={provider.available ? "text-ok" : "text-muted"}>{provider.available ? "ready" : "not available"}</span>
              {provider.is_default && <span className="text-meta text-muted">default</span>}
              <span className="ml-auto text-meta text-muted">
                {[provider.capabilities.max_cpu == null ? null : `${provider.capabilities.max_cpu} cores`, provider.capabilities.max_memory_gb == null ? null : `${provider.capabilities.max_memory_gb} GB`].filter(Boolean).join(", ")}
              </span>
            </p>
            {!provider.available && provider.detail != null && <p className="text-meta text-muted [overflow-wrap:anywhere]">{provider.detail}</p>}
          </li>
        ))}
      </ul>
    </Section>
  );
}
