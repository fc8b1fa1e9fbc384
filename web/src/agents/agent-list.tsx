import { CircleCheck, CircleDashed, RefreshCw } from "lucide-react";
import { useAgents } from "@/api/queries";
import type { Abilities, Agent } from "@/api/types";
import { Button } from "@/components/button";
import { FailureNotice, Skeleton } from "@/components/notice";
import { capitalize } from "@/text/format";
import { InlineCode } from "@/text/inline-code";
import { SafeText } from "@/text/safe-text-view";

const ABILITY_WORDS: Record<keyof Abilities, string> = {
  steer: "steer", queue: "queue", interrupt: "interrupt", approvals: "approvals", questions: "questions", hooks: "tool rules",
  resume: "resume", fork: "fork", usage: "usage", plan: "plan",
};

/** The agents that this server knows: version, key, abilities, and what is missing. */
export function AgentList() {
  const agents = useAgents();
  return (
    <div className="flex flex-col gap-3">
      {agents.error !== null && <FailureNotice failure={agents.error} onRetry={() => void agents.refetch()} />}
      {agents.data === undefined && agents.error === null && <Skeleton label="Loading the agents" />}
      <ul className="flex flex-col gap-3">{agents.data?.map((agent) => <AgentCard key={agent.name} agent={agent} />)}</ul>
      <div><Button icon={<RefreshCw size={15} aria-hidden />} isBusy={agents.isFetching} onClick={() => void agents.refetch()}>Check again</Button></div>
    </div>
  );
}

function AgentCard({ agent }: { agent: Agent }) {
  const abilities = (Object.keys(ABILITY_WORDS) as (keyof Abilities)[]).filter((name) => agent.abilities[name]);
  return (
    <li className="rounded-md border border-line px-3 py-2.5">
      <p className="flex flex-wrap items-center gap-x-3 gap-y-1 text-control">
        {agent.usable ? <CircleCheck size={16} className="text-ok" aria-label="Ready" /> : <CircleDashed size={16} className="text-muted" aria-label="Not ready" />}
        <span className="font-semibold">{agent.name}</span>
        <span className="text-muted">{agent.title}{agent.version == null ? "" : ` ${agent.version}`}</span>
        {agent.version != null && !agent.tested && <span className="text-meta text-attention">version not tested with Atoll</span>}
        <span className="ml-auto text-meta text-muted">{agent.keys.length === 0 ? "needs no key" : agent.key ? "key present" : "no key"}</span>
      </p>
      {agent.missing.length > 0 && (
        <ul className="mt-1.5 flex flex-col gap-1 text-control text-attention">{agent.missing.map((text) => <li key={text} className="[overflow-wrap:anywhere]"><InlineCode text={`${capitalize(text)}.`} /></li>)}</ul>
      )}
      <p className="mt-1.5 text-meta text-muted">Can: {abilities.map((name) => ABILITY_WORDS[name]).join(", ")}</p>
      {agent.path != null && <p className="mt-0.5 truncate font-mono text-meta text-muted"><SafeText text={agent.path} /></p>}
    </li>
  );
}
