import { useMemo } from "react";
import { useQuery } from "@tanstack/react-query";
import { GitBranch, GitCommitHorizontal, GitPullRequest, History } from "lucide-react";
import { api, requestRaw, sandboxPath, unwrap } from "@/api/client";
import type { Sandbox, StoredEvent } from "@/api/types";
import { Button } from "@/components/button";
import { FailureNotice, Notice } from "@/components/notice";
import { reportSuccess } from "@/components/toast";
import { useAction } from "@/components/use-action";
import type { EventLog } from "@/events/event-log";
import { storeRow } from "@/sandboxes/live-rows";
import { dataOf, listField, numberField, textField } from "@/sandboxes/steps";
import { hasEnded } from "@/sandboxes/status";
import { useNow } from "@/shell/clock";
import { CopyButton } from "@/text/code-block";
import { formatAge, plural } from "@/text/format";
import { safeUrl } from "@/text/safe-text";
import { SafeText } from "@/text/safe-text-view";
import { describeNotice } from "@/timeline/notices";
import { PullRequestSection } from "./pull-request-section";

const COMMIT_LIMIT = 50;
const FIELD = "\u001f";

interface Commit {
  hash: string;
  author: string;
  at: string;
  subject: string;
}

/** The commits in the workspace since the base of the work, from git in the sandbox. */
async function fetchCommits(id: string, base: string | null): Promise<Commit[]> {
  const range = base === null ? "HEAD" : `${base}..HEAD`;
  const argv = ["git", "log", `--max-count=${COMMIT_LIMIT}`, `--format=%H${FIELD}%an${FIELD}%aI${FIELD}%s`, range, "--"];
  const body = JSON.stringify({ argv, timeout_s: 10 });
  const response = await requestRaw(sandboxPath(id, "/exec"), { method: "POST", body, headers: { "Content-Type": "application/json" } });
  let text = "";
  for (const line of (await response.text()).split("\n")) {
    if (line === "") continue;
    const frame = JSON.parse(line) as { stream?: string; data?: string };
    if (frame.stream === "stdout") text += frame.data ?? "";
  }
  return text.split("\n").filter(Boolean).map((line) => {
    const [hash = "", author = "", at = "", subject = ""] = line.split(FIELD);
    return { hash, author, at, subject };
  });
}

/** Branch, commits, export and pull request of the session. */
export function GitPanel({ sandbox, log }: { sandbox: Sandbox; log: EventLog }) {
  const repo = sandbox.settings.repo ?? null;
  const exporting = useAction("Not exported");
  const isLive = sandbox.state === "running";
  const base = repo?.base ?? null;
  const workspaceVersion = useMemo(() => log.events.findLast((event) => event.type === "agent.tool_completed" || event.type === "agent.completed")?.seq ?? 0, [log.events]);
  const commits = useQuery({ queryKey: ["commits", sandbox.id, workspaceVersion], enabled: isLive && repo !== null, queryFn: () => fetchCommits(sandbox.id, base), placeholderData: (before: Commit[] | undefined) => before });
  const gitVersion = useMemo(() => log.events.findLast((event) => event.type.startsWith("git."))?.seq ?? 0, [log.events]);
  const gitEvents = useQuery({
    queryKey: ["git-events", sandbox.id, sandbox.results, gitVersion],
    queryFn: async () => (await unwrap(api.GET("/api/v1/sandboxes/{id}/events", { params: { path: { id: sandbox.id }, query: { type: "git.*", order: "desc", limit: 50 } } }))).items as StoredEvent[],
  });
  const exported = gitEvents.data?.find((event) => event.type === "git.branch_created") ?? null;

  if (repo === null) return <div className="p-4"><Notice>This sandbox has no repository. Its results are the transcript and the event log.</Notice></div>;
  const takeResults = () =>
    void exporting.run(async () => {
      const result = await unwrap(api.POST("/api/v1/sandboxes/{id}/results", { params: { path: { id: sandbox.id } } }));
      storeRow(result.sandbox);
      reportSuccess(result.taken.length === 0 ? "There are no changes to export" : `Exported the branch ${result.taken.map(({ branch }) => branch).join(", ")}`);
    });
  const branch = sandbox.branch ?? repo.branch ?? null;
  return (
    <div className="scroll-area flex min-h-0 flex-1 flex-col gap-5 p-4">
      <section>
        <h3 className="mb-2 flex items-center gap-2 text-control font-semibold"><GitBranch size={16} aria-hidden />Branch</h3>
        <div className="rounded-md border border-line">
          <div className="flex items-center gap-2 px-3 py-2">
            <span className="min-w-0 flex-1 font-mono text-code [overflow-wrap:anywhere]">{branch === null ? "no name yet" : <SafeText text={branch} />}</span>
            {branch !== null && <CopyButton text={branch} label="Copy the branch" />}
          </div>
          <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-1 border-t border-line px-3 py-2 text-control">
            <dt className="text-muted">Repository</dt>
            <dd className="[overflow-wrap:anywhere]"><SafeText text={repo.url ?? repo.path ?? "unknown"} /></dd>
            {base !== null && <><dt className="text-muted">Base</dt><dd className="font-mono text-code">{base.slice(0, 12)}</dd></>}
            <dt className="text-muted">Results</dt>
            <dd>{RESULT_WORDS[sandbox.results]}</dd>
          </dl>
          {sandbox.results !== "lost" && (isLive || hasEnded(sandbox)) && (
            <div className="flex items-center gap-3 border-t border-line px-3 py-2">
              <p className="min-w-0 flex-1 text-meta text-muted">{isLive ? "Commits the current work to the branch, between two tool calls. The agent continues." : "Exports what the sandbox left."}</p>
              <Button size="small" isBusy={exporting.isBusy} onClick={takeResults}>Export now</Button>
            </div>
          )}
        </div>
        {exported !== null && <ExportedBranch event={exported} />}
      </section>
      {isLive && (
        <section>
          <h3 className="mb-2 flex items-center gap-2 text-control font-semibold"><GitCommitHorizontal size={16} aria-hidden />Commits of the agent</h3>
          {commits.error !== null && <FailureNotice failure={commits.error} onRetry={() => void commits.refetch()} />}
          {commits.data?.length === 0 && <p className="text-control text-muted">No commits yet. Changes that are not committed are in Changes, and the export commits them.</p>}
          <ul className="flex flex-col">{commits.data?.map((commit) => <CommitLine key={commit.hash} commit={commit} />)}</ul>
        </section>
      )}
      <section>
        <h3 className="mb-2 flex items-center gap-2 text-control font-semibold"><GitPullRequest size={16} aria-hidden />Pull request</h3>
        <PullRequestSection sandbox={sandbox} version={gitVersion} />
      </section>
      <section>
        <h3 className="mb-2 flex items-center gap-2 text-control font-semibold"><History size={16} aria-hidden />History</h3>
        {gitEvents.error !== null && <FailureNotice failure={gitEvents.error} onRetry={() => void gitEvents.refetch()} />}
        {gitEvents.data?.length === 0 && <p className="text-control text-muted">Nothing happened with the branch yet.</p>}
        <ul className="flex flex-col gap-2">{gitEvents.data?.map((event) => <GitEventLine key={event.id} event={event} />)}</ul>
      </section>
    </div>
  );
}

const RESULT_WORDS: Record<Sandbox["results"], string> = {
  none: "nothing to export",
  pending: "not exported yet",
  taken: "exported",
  lost: "lost: the files are gone",
};

function ExportedBranch({ event }: { event: StoredEvent }) {
  const data = dataOf<"git.branch_created">(event);
  const branch = textField(data, "branch");
  const command = `git diff ${textField(data, "base").slice(0, 12)}..${branch}`;
  const flagged = listField(data, "flagged");
  const files: unknown = data.files;
  return (
    <div className="mt-2 rounded-md border border-ok/50 bg-ok-tint px-3 py-2 text-control">
      <p><span className="font-semibold text-ok">Exported</span> {plural(numberField(data, "commits") ?? 0, "commit")} with {plural(Array.isArray(files) ? files.length : 0, "changed file")}</p>
      <p className="mt-1 flex items-center gap-1 font-mono text-code"><span className="min-w-0 flex-1 [overflow-wrap:anywhere]"><SafeText text={command} /></span><CopyButton text={command} label="Copy the command" /></p>
      {flagged.length > 0 && <p className="mt-1 text-attention">Look twice at these files, which decide what machines run: <SafeText text={flagged.join(", ")} /></p>}
    </div>
  );
}

function CommitLine({ commit }: { commit: Commit }) {
  const now = useNow(10);
  return (
    <li className="flex items-baseline gap-3 border-b border-line py-1.5 last:border-b-0">
      <span className="font-mono text-code text-muted">{commit.hash.slice(0, 8)}</span>
      <span className="min-w-0 flex-1 [overflow-wrap:anywhere]"><SafeText text={commit.subject} /></span>
      <span className="shrink-0 text-meta text-muted"><SafeText text={commit.author} /> · {formatAge(commit.at, now)}</span>
    </li>
  );
}

function GitEventLine({ event }: { event: StoredEvent }) {
  const now = useNow(10);
  const notice = describeNotice(event);
  const url = safeUrl(textField(dataOf<"git.pr_merged">(event), "url"));
  return (
    <li className="flex items-baseline gap-3 text-control">
      <span className="min-w-0 flex-1 [overflow-wrap:anywhere]">
        <SafeText text={notice?.text ?? event.type} />
        {notice?.detail !== undefined && notice.detail !== "" && <span className="block text-meta text-muted"><SafeText text={notice.detail} /></span>}
        {url !== null && <a href={url} target="_blank" rel="noopener noreferrer" className="block truncate text-meta text-accent underline">{url}</a>}
      </span>
      <time className="shrink-0 text-meta text-muted" dateTime={event.at}>{formatAge(event.at, now)}</time>
    </li>
  );
}
