import { useQuery } from "@tanstack/react-query";
import { CircleCheck, CircleX, ExternalLink, GitMerge, GitPullRequest, GitPullRequestClosed, Hourglass } from "lucide-react";
import { api, unwrap } from "@/api/client";
import { queryClient } from "@/api/queries";
import type { Sandbox, Schemas } from "@/api/types";
import { Button } from "@/components/button";
import { FailureNotice, Notice, Skeleton } from "@/components/notice";
import { reportSuccess } from "@/components/toast";
import { useAction } from "@/components/use-action";
import { capitalize, plural } from "@/text/format";
import { safeUrl } from "@/text/safe-text";
import { SafeText } from "@/text/safe-text-view";

type Progress = Schemas["BranchWorkflowProgress"];
type PullRequest = Schemas["PullRequestView"];

/** A forge reports changes by webhook, or not at all: then the page asks again. */
const REFRESH_MS = 30_000;

/** Pushes the session's branch, opens its pull request and merges it. The server does each in the background. */
export function PullRequestSection({ sandbox, version }: { sandbox: Sandbox; version: number }) {
  const session = sandbox.session_id;
  const key = ["branch-workflow", session];
  const workflow = useQuery({
    queryKey: [...key, version],
    placeholderData: (before) => before,
    queryFn: () => unwrap(api.GET("/api/v1/branch-workflow/status", { params: { query: { session } } })),
  });
  const progress = workflow.data?.progress ?? null;
  const number = progress?.pull_request?.number ?? null;
  const pull = useQuery({
    queryKey: ["pull-request", session, number, version],
    enabled: number !== null,
    refetchInterval: progress?.pull_request?.state === "open" ? REFRESH_MS : false,
    placeholderData: (before) => before,
    queryFn: () => unwrap(api.GET("/api/v1/pull-requests/{id}", { params: { path: { id: session } } })),
  });
  const changing = useAction("Not started");
  const start = (text: string, action: () => Promise<unknown>) =>
    void changing.run(async () => {
      await action();
      await queryClient.invalidateQueries({ queryKey: key });
      reportSuccess(text);
    });
  const finish = (publish: Schemas["Publication"]) => () => unwrap(api.POST("/api/v1/branch-workflow/finish", { params: {}, body: { session_id: session, publish } }));
  const merge = () => unwrap(api.POST("/api/v1/branch-workflow/merge", { params: {}, body: { session_id: session } }));

  if (workflow.error !== null) return <FailureNotice failure={workflow.error} onRetry={() => void workflow.refetch()} />;
  if (workflow.data === undefined) return <Skeleton lines={2} label="Loading the pull request" />;
  if (sandbox.settings.repo?.url == null) {
    return <p className="text-control text-muted">The repository is a directory on the server&apos;s machine: push the branch from there. For pull requests, start from a URL.</p>;
  }
  const isMerged = progress?.pull_request?.state === "merged";
  const isBusy = changing.isBusy || progress?.state === "running";
  return (
    <div className="rounded-md border border-line">
      {progress !== null && <ProgressLines progress={progress} />}
      {pull.error !== null && <div className="p-2"><FailureNotice failure={pull.error} onRetry={() => void pull.refetch()} /></div>}
      {pull.data !== undefined && <PullRequestFacts pull={pull.data} />}
      {!isMerged && (
        <div className="flex flex-wrap items-center gap-2 border-t border-line px-3 py-2 first:border-t-0">
          <p className="min-w-0 flex-1 text-meta text-muted">{number === null ? "The server pushes the branch with its own credentials. The agent has none." : "The server merges when the checks and reviews allow it, and then deletes the branch."}</p>
          {number === null && <Button size="small" isBusy={isBusy} onClick={() => { start("The server pushes the branch", finish("push")); }}>Push the branch</Button>}
          <Button size="small" isBusy={isBusy} onClick={() => { start("The server publishes the branch", finish("pull_request")); }}>{number === null ? "Open a pull request" : "Update it"}</Button>
          {number !== null && <Button size="small" tone="primary" isBusy={isBusy} onClick={() => { start("The server merges when the forge allows it", merge); }}>Merge</Button>}
        </div>
      )}
    </div>
  );
}

const STEP_WORDS: Record<Schemas["WorkflowStep"], string> = {
  export: "Exports the work",
  update: "Adds commits of the base",
  push: "Pushes the branch",
  pull_request: "Opens the pull request",
  merge: "Merges",
  delete_branch: "Deletes the branch",
  update_dependants: "Moves dependent branches",
};

function ProgressLines({ progress }: { progress: Progress }) {
  const reason = progress.reason?.detail ?? "";
  const flagged = progress.flagged ?? [];
  return (
    <div className="flex flex-col gap-2 px-3 py-2 text-control">
      {progress.state !== "done" && (
        <p className={progress.state === "failed" ? "text-bad" : progress.state === "running" ? "text-accent" : "text-attention"}>
          <span className="font-semibold">{STEP_WORDS[progress.step]}</span>{" "}
          {progress.state === "waiting_agent" ? "after the agent has resolved a conflict" : progress.state === "waiting" ? "when it is allowed" : progress.state === "failed" ? "failed" : ""}
        </p>
      )}
      {reason !== "" && <p className="text-muted [overflow-wrap:anywhere]"><SafeText text={capitalize(reason)} /></p>}
      {(progress.conflicts?.length ?? 0) > 0 && <Notice tone="attention">Conflicts in <SafeText text={(progress.conflicts ?? []).join(", ")} /></Notice>}
      {flagged.length > 0 && <Notice tone="attention">Look twice at {plural(flagged.length, "file")} that decide what machines run: <SafeText text={flagged.join(", ")} /></Notice>}
      {progress.pushed_commit != null && progress.pull_request == null && <p className="text-muted">Pushed <span className="font-mono text-code">{progress.pushed_commit.slice(0, 12)}</span> to <SafeText text={progress.repo} /></p>}
    </div>
  );
}

const STATE_LOOKS = {
  open: { Icon: GitPullRequest, word: "Open", tone: "text-ok" },
  merged: { Icon: GitMerge, word: "Merged", tone: "text-paused" },
  closed: { Icon: GitPullRequestClosed, word: "Closed", tone: "text-bad" },
} as const;

function PullRequestFacts({ pull }: { pull: PullRequest }) {
  const { Icon, word, tone } = STATE_LOOKS[pull.state];
  const url = safeUrl(pull.url);
  const status = pull.status ?? null;
  const merge = pull.merge ?? null;
  return (
    <div className="flex flex-col gap-1.5 border-t border-line px-3 py-2 text-control first:border-t-0">
      <p className="flex items-center gap-2">
        <Icon size={16} className={`shrink-0 ${tone}`} aria-hidden />
        <span className={`font-semibold ${tone}`}>{word}</span>
        <span className="min-w-0 flex-1 truncate">#{pull.number} <SafeText text={pull.title} /></span>
        {url !== null && <a href={url} target="_blank" rel="noopener noreferrer" className="flex shrink-0 items-center gap-1 text-accent underline">Open<ExternalLink size={13} aria-hidden /></a>}
      </p>
      <p className="text-meta text-muted [overflow-wrap:anywhere]"><SafeText text={`${pull.branch} → ${pull.target} of ${pull.repo}`} /></p>
      {status !== null && (
        <ul className="flex flex-col gap-1">
          <Verdict good={status.checks === "passed" || status.checks === "none"} bad={status.checks === "failed"} text={`Checks: ${CHECK_WORDS[status.checks]}${(status.failed_checks ?? []).length > 0 ? `: ${(status.failed_checks ?? []).join(", ")}` : ""}`} />
          <Verdict good={status.reviews === "approved" || status.reviews === "none"} bad={status.reviews === "changes_requested"} text={`Reviews: ${REVIEW_WORDS[status.reviews]}`} />
          {merge !== null && <Verdict good={merge.verdict === "allowed" || merge.verdict === "already_merged"} bad={merge.verdict === "refused" || merge.verdict === "conflict"} text={describeMerge(merge)} />}
        </ul>
      )}
      {status === null && pull.state === "open" && <p className="text-meta text-attention">The forge does not report its checks and reviews now.</p>}
    </div>
  );
}

const CHECK_WORDS: Record<Schemas["ChecksState"], string> = { none: "none", pending: "running", passed: "passed", failed: "failed", unknown: "not known" };
const REVIEW_WORDS: Record<Schemas["ReviewsState"], string> = { none: "none", approved: "approved", changes_requested: "changes requested", unknown: "not known" };

function describeMerge(merge: Schemas["MergeVerdict"]): string {
  switch (merge.verdict) {
    case "allowed":
      return "The server may merge it";
    case "already_merged":
      return "Merged";
    case "wait":
    case "refused":
      return capitalize(merge.reason);
    case "conflict":
      return "The branch and its base changed the same lines";
    case "behind":
      return "The branch needs the newest commits of its base";
  }
}

function Verdict({ good, bad, text }: { good: boolean; bad: boolean; text: string }) {
  const [Icon, tone] = bad ? ([CircleX, "text-bad"] as const) : good ? ([CircleCheck, "text-ok"] as const) : ([Hourglass, "text-attention"] as const);
  return <li className="flex items-start gap-2"><Icon size={15} className={`mt-0.5 shrink-0 ${tone}`} aria-hidden /><span className="min-w-0 [overflow-wrap:anywhere]"><SafeText text={text} /></span></li>;
}
