import type { Sandbox, StoredEvent } from "@/api/types";
import { dataOf, numberField } from "@/sandboxes/steps";
import { formatCost, formatCount } from "@/text/format";

/** Tokens that the model had before it in its last request. */
export function contextTokens(events: readonly StoredEvent[]): number | null {
  const usage = events.findLast((event) => event.type === "agent.usage");
  if (usage === undefined) return null;
  const data = dataOf<"agent.usage">(usage);
  return (numberField(data, "input_tokens") ?? 0) + (numberField(data, "cache_read_tokens") ?? 0) + (numberField(data, "cache_write_tokens") ?? 0);
}

interface MeterProps {
  label: string;
  value: string;
  /** The used part of a limit, from 0 to 1. */
  share?: number | null;
  title?: string;
}

export function Meter({ label, value, share = null, title }: MeterProps) {
  const tone = share === null || share < 0.8 ? "bg-accent" : share < 1 ? "bg-attention" : "bg-bad";
  return (
    <div title={title} className="flex shrink-0 flex-col justify-center gap-0.5">
      <span className="text-meta whitespace-nowrap"><span className="text-muted">{label}</span> <span className="font-semibold">{value}</span></span>
      {share !== null && (
        <span role="meter" aria-label={label} aria-valuenow={Math.round(share * 100)} aria-valuemin={0} aria-valuemax={100} className="block h-1 w-full overflow-hidden rounded-full bg-sunk">
          <span className={`block h-full ${tone}`} style={{ width: `${Math.min(100, share * 100)}%` }} />
        </span>
      )}
    </div>
  );
}

export function SandboxMeters({ sandbox, events }: { sandbox: Sandbox; events: readonly StoredEvent[] }) {
  const limits = sandbox.settings.limits;
  const cost = sandbox.cost.model ?? null;
  const costLimit = limits?.cost_usd ?? null;
  const turns = sandbox.turn ?? 0;
  const turnLimit = limits?.turns ?? null;
  const tokens = contextTokens(events);
  return (
    <>
      <Meter
        label="Cost"
        value={`${cost === null ? "unknown" : formatCost(cost)}${costLimit === null ? "" : ` of ${formatCost(costLimit)}`}`}
        share={cost !== null && costLimit !== null && costLimit > 0 ? cost / costLimit : null}
        title={sandbox.cost.model_source === "estimate" ? "Estimated from prices" : "Cost of the model"}
      />
      {tokens !== null && tokens > 0 && <Meter label="Context" value={`${formatCount(tokens)} tokens`} title="Tokens in the model's last request" />}
      {turnLimit !== null && <Meter label="Turns" value={`${turns} of ${turnLimit}`} share={turnLimit > 0 ? turns / turnLimit : null} />}
    </>
  );
}
