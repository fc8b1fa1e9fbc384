import { Check, Circle, LoaderCircle, X } from "lucide-react";
import type { Sandbox, StoredEvent } from "@/api/types";
import { SafeText } from "@/text/safe-text-view";

export interface StartStep {
  label: string;
  state: "done" | "running" | "failed" | "open";
}

/** The steps from the request to the agent's first turn, from events. */
export function startSteps(events: readonly StoredEvent[], sandbox: Pick<Sandbox, "state" | "settings" | "agent">): StartStep[] {
  const types = new Set(events.map((event) => event.type));
  const hasRepo = sandbox.settings.repo != null;
  const isSetupFailed = types.has("setup.failed");
  const plan: { label: string; isDone: boolean; isShown: boolean; isFailed?: boolean }[] = [
    { label: "Request stored", isDone: true, isShown: true },
    { label: "Sandbox created", isDone: types.has("git.cloned") || types.has("setup.started") || types.has("sandbox.running"), isShown: true },
    { label: "Repository copied", isDone: types.has("git.cloned"), isShown: hasRepo },
    { label: "Set-up", isDone: types.has("setup.completed") || types.has("setup.skipped"), isShown: [...types].some((type) => type.startsWith("setup.")), isFailed: isSetupFailed },
    { label: "Worker started", isDone: types.has("sandbox.running"), isShown: true },
    { label: "Agent started", isDone: types.has("agent.started") || types.has("agent.waiting"), isShown: sandbox.agent != null },
  ];
  const shown = plan.filter((step) => step.isShown);
  const next = shown.findIndex((step) => !step.isDone);
  const hasFailed = sandbox.state === "failed";
  return shown.map((step, index) => {
    if (step.isDone) return { label: step.label, state: "done" };
    if (index !== next) return { label: step.label, state: "open" };
    return { label: step.label, state: hasFailed || step.isFailed === true ? "failed" : "running" };
  });
}

const ICONS = {
  done: <Check size={15} className="text-ok" aria-label="Done" />,
  running: <LoaderCircle size={15} className="animate-spin text-accent" aria-label="Running" />,
  failed: <X size={15} className="text-bad" aria-label="Failed" />,
  open: <Circle size={15} className="text-muted" aria-label="Open" />,
};

/** The progress of a start, until the agent works; or the step that failed. */
export function StartProgress({ sandbox, events }: { sandbox: Sandbox; events: readonly StoredEvent[] }) {
  const isStarting = sandbox.state === "pending" || sandbox.state === "creating";
  const hasFailedEarly = sandbox.state === "failed" && (sandbox.turn ?? 0) === 0;
  if (!isStarting && !hasFailedEarly) return null;
  return (
    <section aria-label="Start of the sandbox" className="mx-auto w-full max-w-[52rem] px-4 pt-4 md:px-6">
      <ol className="flex flex-col gap-1.5 rounded-md border border-line px-4 py-3">
        {startSteps(events, sandbox).map((step) => (
          <li key={step.label} className={`flex items-center gap-2.5 text-control ${step.state === "open" ? "text-muted" : step.state === "failed" ? "font-semibold text-bad" : ""}`}>
            {ICONS[step.state]}
            {step.label}
          </li>
        ))}
        {hasFailedEarly && sandbox.reason != null && <li className="mt-1 text-control text-bad"><SafeText text={sandbox.reason.detail} /></li>}
        {sandbox.worker?.command !== undefined && sandbox.state === "pending" && (
          <li className="mt-1 text-control">Start the worker: <code className="font-mono text-code [overflow-wrap:anywhere]">{sandbox.worker.command}</code></li>
        )}
      </ol>
    </section>
  );
}
