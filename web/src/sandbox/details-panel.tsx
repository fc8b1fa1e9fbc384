import { useState, type FormEvent, type ReactNode } from "react";
import { useQuery } from "@tanstack/react-query";
import { api, unwrap } from "@/api/client";
import type { Sandbox } from "@/api/types";
import { Button } from "@/components/button";
import { Facts } from "@/components/facts";
import { Field, TextInput } from "@/components/field";
import { FailureNotice } from "@/components/notice";
import { reportSuccess } from "@/components/toast";
import { useAction } from "@/components/use-action";
import { limitWord } from "@/sandboxes/status";
import { CopyButton } from "@/text/code-block";
import { formatBytes, formatCost, formatCount, formatDateTime } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { Chart } from "./chart";
import { NetworkSection } from "./network-section";

const RESOURCE_INTERVAL_MS = 10_000;

export function DetailSection({ title, children }: { title: string; children: ReactNode }) {
  return (
    <section>
      <h3 className="mb-2 text-control font-semibold">{title}</h3>
      {children}
    </section>
  );
}

/** Resources over time, limits, network, and the settings of a sandbox. */
export function DetailsPanel({ sandbox }: { sandbox: Sandbox }) {
  return (
    <div className="scroll-area flex min-h-0 flex-1 flex-col gap-6 p-4">
      <ResourceSection sandbox={sandbox} />
      <LimitSection sandbox={sandbox} />
      <NetworkSection sandbox={sandbox} />
      <UsageSection sandbox={sandbox} />
      <DetailSection title="Sandbox">
        <Facts
          facts={[
            ["Id", sandbox.id], ["Session", sandbox.session_id], ["Project", sandbox.project_id], ["Name", sandbox.name], ["Provider", sandbox.provider],
            ["Agent", sandbox.agent], ["Ends", sandbox.end === "keep" ? "when someone stops it" : "when the work is done"], ["Created", formatDateTime(sandbox.created_at)],
            ["Ended", sandbox.ended_at == null ? null : formatDateTime(sandbox.ended_at)], ["Created by", sandbox.created_by],
            ["Labels", Object.entries(sandbox.labels).map(([key, value]) => `${key}=${value}`).join(", ")], ["Exposed secrets", sandbox.exposed_secrets.join(", ")],
            ["Event log", `${sandbox.last_seq.toLocaleString("en")} events, ${formatBytes(sandbox.log_bytes ?? 0)}`],
          ]}
        />
      </DetailSection>
      <DetailSection title="Settings">
        <div className="relative rounded-md border border-line bg-raised">
          <div className="absolute top-1 right-1"><CopyButton text={JSON.stringify(sandbox.settings, null, 2)} label="Copy the settings" /></div>
          <pre tabIndex={0} aria-label="Settings" className="scroll-area max-h-96 px-3 py-2 font-mono text-code"><SafeText text={JSON.stringify(sandbox.settings, null, 2)} /></pre>
        </div>
      </DetailSection>
    </div>
  );
}

function ResourceSection({ sandbox }: { sandbox: Sandbox }) {
  const isLive = sandbox.state === "running";
  const resources = useQuery({
    queryKey: ["resources", sandbox.id],
    refetchInterval: isLive ? RESOURCE_INTERVAL_MS : false,
    queryFn: () => unwrap(api.GET("/api/v1/sandboxes/{id}/resources", { params: { path: { id: sandbox.id } } })),
  });
  if (resources.error !== null) return <FailureNotice failure={resources.error} onRetry={() => void resources.refetch()} />;
  const series = resources.data;
  const samples = series?.items ?? [];
  if (series === undefined || samples.length === 0) return <DetailSection title="Resources"><p className="text-control text-muted">{series === undefined ? "Loading" : "No samples yet."}</p></DetailSection>;
  const times = samples.map((sample) => Date.parse(sample.at) / 1000);
  const now = series.now ?? samples.at(-1) ?? null;
  const memoryLimit = series.limits?.memory_gb == null ? null : series.limits.memory_gb * 2 ** 30;
  return (
    <DetailSection title="Resources">
      <div className="flex flex-col gap-4">
        <Measure name="CPU" value={now?.cpu == null ? "no sample" : `${now.cpu.toFixed(2)}${series.limits?.cpu == null ? "" : ` of ${series.limits.cpu}`} cores`}>
          <Chart label="CPU over time" times={times} values={samples.map((sample) => sample.cpu ?? null)} max={series.limits?.cpu ?? 1} format={(value) => value.toFixed(1)} />
        </Measure>
        <Measure name="Memory" value={now === null ? "no sample" : `${formatBytes(now.memory_bytes)}${memoryLimit === null ? "" : ` of ${formatBytes(memoryLimit)}`}`}>
          <Chart label="Memory over time" times={times} values={samples.map((sample) => sample.memory_bytes)} format={formatBytes} />
        </Measure>
        <Facts
          facts={[
            ["Disk", now?.disk_bytes == null ? null : `${formatBytes(now.disk_bytes)}${series.limits?.disk_gb == null ? "" : ` of ${series.limits.disk_gb} GB`}`],
            ["Processes", now === null ? null : String(now.pids)], ["Network", now === null ? null : formatBytes(now.network_bytes)],
            ["Sampled", now === null ? null : formatDateTime(now.at)],
          ]}
        />
      </div>
    </DetailSection>
  );
}

function Measure({ name, value, children }: { name: string; value: string; children: ReactNode }) {
  return (
    <div>
      <p className="mb-1 flex justify-between text-control"><span className="text-muted">{name}</span><span className="font-semibold">{value}</span></p>
      {children}
    </div>
  );
}

function LimitSection({ sandbox }: { sandbox: Sandbox }) {
  const limits = sandbox.settings.limits ?? {};
  const [turns, setTurns] = useState(limits.turns == null ? "" : String(limits.turns));
  const [cost, setCost] = useState(limits.cost_usd == null ? "" : String(limits.cost_usd));
  const saving = useAction("Limits not changed");
  const save = (event: FormEvent) => {
    event.preventDefault();
    void saving.run(async () => {
      const body: { turns?: number; cost_usd?: number } = {};
      if (turns.trim() !== "") body.turns = Number(turns);
      if (cost.trim() !== "") body.cost_usd = Number(cost);
      await unwrap(api.PATCH("/api/v1/sandboxes/{id}/limits", { params: { path: { id: sandbox.id } }, body }));
      reportSuccess("Limits changed");
    });
  };
  const paused = sandbox.limit_paused ?? null;
  return (
    <DetailSection title="Limits">
      {paused !== null && <p className="mb-2 text-control text-attention">Paused by the limit on {limitWord(paused)}. Raise it, and the agent continues.</p>}
      <form onSubmit={save} className="flex flex-wrap items-end gap-3">
        <div className="w-28"><Field label="Turns">{(control) => <TextInput {...control} inputMode="numeric" placeholder="no limit" value={turns} onChange={(event) => { setTurns(event.target.value); }} />}</Field></div>
        <div className="w-28"><Field label="Cost in US$">{(control) => <TextInput {...control} inputMode="decimal" placeholder="no limit" value={cost} onChange={(event) => { setCost(event.target.value); }} />}</Field></div>
        <Button type="submit" isBusy={saving.isBusy} disabled={turns === "" && cost === ""}>Change</Button>
      </form>
    </DetailSection>
  );
}

function UsageSection({ sandbox }: { sandbox: Sandbox }) {
  const usage = sandbox.usage ?? null;
  if (usage === null) return null;
  return (
    <DetailSection title="Model">
      <Facts
        facts={[
          ["Cost", usage.cost == null ? "unknown" : `${formatCost(usage.cost)} (${usage.cost_source})`], ["Requests", formatCount(usage.requests)],
          ["Input tokens", formatCount(usage.input)], ["Output tokens", formatCount(usage.output)], ["Read from the cache", formatCount(usage.cache_read)], ["Written to the cache", formatCount(usage.cache_write)],
        ]}
      />
    </DetailSection>
  );
}
