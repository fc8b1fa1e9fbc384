import { useDeferredValue, useState, type FormEvent } from "react";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useQuery } from "@tanstack/react-query";
import { CircleCheck, Play, TriangleAlert } from "lucide-react";
import { api, unwrap } from "@/api/client";
import { describeFailure } from "@/api/problem";
import { useAgents, useProjects, useProviders } from "@/api/queries";
import type { Agent } from "@/api/types";
import { Button } from "@/components/button";
import { Checkbox, Field, Select, TextArea, TextInput } from "@/components/field";
import { Notice } from "@/components/notice";
import { NETWORK_WORDS } from "@/sandbox/network-section";
import { storeRow } from "@/sandboxes/live-rows";
import { readStored, writeStored } from "@/shell/stored";
import { useTitle } from "@/shell/title";
import { capitalize } from "@/text/format";
import { InlineCode } from "@/text/inline-code";
import { checkNumbers, EMPTY_FORM, projectRepository, sortAgents, toRequest, type NewSandboxForm } from "./request";

const route = getRouteApi("/new");
const DRAFT = "draft.new";

function loadForm(project: string | undefined, prompt: string | undefined): NewSandboxForm {
  let stored: Partial<NewSandboxForm> = {};
  try {
    stored = JSON.parse(readStored(DRAFT) ?? "{}") as Partial<NewSandboxForm>;
  } catch {
    // A draft of another version is dropped.
  }
  return { ...EMPTY_FORM, ...stored, ...(project === undefined ? {} : { projectId: project }), ...(prompt === undefined ? {} : { prompt }) };
}

/** Starts a sandbox. What is missing is shown beside the button, before the start. */
export function NewPage() {
  useTitle("New sandbox");
  const search = route.useSearch();
  const navigate = useNavigate();
  const [form, setForm] = useState(() => loadForm(search.project, search.prompt));
  const [failure, setFailure] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const agents = useAgents().data ?? [];
  const projects = useProjects().data ?? [];
  const providers = useProviders().data ?? [];
  const project = projects.find((each) => each.id === form.projectId) ?? projects.find((each) => each.is_default);
  const change = (part: Partial<NewSandboxForm>) => {
    const next = { ...form, ...part };
    setForm(next);
    writeStored(DRAFT, JSON.stringify(next));
  };
  const numbers = checkNumbers(form);
  const deferred = useDeferredValue(form);
  const preview = useQuery({
    queryKey: ["preview", JSON.stringify(toRequest({ ...deferred, prompt: deferred.prompt === "" ? "" : "x", title: "" }))],
    enabled: numbers === null,
    retry: false,
    staleTime: 5_000,
    placeholderData: (before) => before,
    queryFn: () => unwrap(api.POST("/api/v1/sandboxes/preview", { body: toRequest({ ...deferred, prompt: deferred.prompt === "" ? "" : "x" }) })),
  });

  const submit = (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setFailure(null);
    const key = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16)).join("-");
    unwrap(api.POST("/api/v1/sandboxes", { params: { header: { "Idempotency-Key": key } }, body: toRequest(form) }))
      .then(async (sandbox) => {
        writeStored(DRAFT, JSON.stringify({ ...form, prompt: "", title: "" }));
        storeRow(sandbox);
        await navigate({ to: "/sandboxes/$id", params: { id: sandbox.id } });
      })
      .catch(setFailure)
      .finally(() => { setBusy(false); });
  };

  const agent = agents.find((each) => each.name === (form.agent !== "" ? form.agent : preview.data?.agent)) ?? null;
  const missing = numbers ?? (preview.error === null ? null : describeFailure(preview.error));
  const needsAgent = form.prompt.trim() !== "" && preview.data !== undefined && preview.data.agent == null && missing === null;

  return (
    <div className="scroll-area min-h-0 flex-1" data-pane="New sandbox">
      <form onSubmit={submit} className="mx-auto flex max-w-3xl flex-col gap-6 px-4 py-6 md:px-6 md:py-8">
        <h1 className="text-title font-semibold">New sandbox</h1>
        <Field label="What should the agent do?" hint={agent?.name === "demo" ? "The demo agent follows one instruction per line: say, edit FILE TEXT, run COMMAND, ask, wait SECONDS." : "You can steer it while it works."}>
          {(control) => (
            <TextArea
              {...control}
              autoFocus
              rows={6}
              value={form.prompt}
              onChange={(event) => { change({ prompt: event.target.value }); }}
              onKeyDown={(event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.form?.requestSubmit(); }}
              placeholder="Describe the work. Without a task, the agent waits for your first message."
              className="text-body"
            />
          )}
        </Field>
        <div className="grid gap-4 md:grid-cols-2">
          {projects.length > 1 && (
            <Field label="Project">
              {(control) => (
                <Select {...control} value={form.projectId} onChange={(event) => { change({ projectId: event.target.value }); }}>
                  <option value="">Default project</option>
                  {projects.filter((each) => !each.is_default).map((each) => <option key={each.id} value={each.id}>{each.name}</option>)}
                </Select>
              )}
            </Field>
          )}
          <Field label="Repository" hint="A path on the server's machine, or a URL. The agent gets a copy of the last commit.">
            {(control) => <TextInput {...control} placeholder={projectRepository(project) || "none"} value={form.repository} onChange={(event) => { change({ repository: event.target.value }); }} />}
          </Field>
          <Field label="Base branch or commit">{(control) => <TextInput {...control} placeholder={project?.repo?.base ?? "the current one"} value={form.base} onChange={(event) => { change({ base: event.target.value }); }} />}</Field>
          <Field label="Agent" hint={agent !== null && agent.usable ? describeAgent(agent) : undefined} error={agent !== null && !agent.usable ? agent.missing.map(capitalize).join(". ") : null}>
            {(control) => (
              <Select {...control} value={form.agent} onChange={(event) => { change({ agent: event.target.value }); }}>
                <option value="">{preview.data?.agent == null || form.agent !== "" ? "Automatic" : `Automatic: ${preview.data.agent}`}</option>
                {sortAgents(agents).map((each) => <option key={each.name} value={each.name}>{each.name}{each.usable ? "" : " (not ready)"}</option>)}
              </Select>
            )}
          </Field>
          <Field label="Model">{(control) => <TextInput {...control} placeholder={preview.data?.settings.model ?? "the agent's default"} value={form.model} onChange={(event) => { change({ model: event.target.value }); }} />}</Field>
        </div>
        <details className="rounded-md border border-line">
          <summary className="px-3 py-2.5 text-control font-semibold">Limits, network and more</summary>
          <div className="grid gap-4 border-t border-line p-4 md:grid-cols-2">
            <Field label="Title" hint="Also names the branch.">{(control) => <TextInput {...control} placeholder="from the task" value={form.title} onChange={(event) => { change({ title: event.target.value }); }} />}</Field>
            <Field label="Mode">
              {(control) => (
                <Select {...control} value={form.mode} onChange={(event) => { change({ mode: event.target.value }); }}>
                  <option value="">Implementation</option>
                  <option value="exploration">Exploration: looks, changes nothing</option>
                  <option value="validation">Validation: checks existing work</option>
                </Select>
              )}
            </Field>
            <Field label="Approvals" hint="The sandbox is the boundary; approvals are an addition.">
              {(control) => (
                <Select {...control} value={form.approvals} onChange={(event) => { change({ approvals: event.target.value }); }}>
                  <option value="">{preview.data?.settings.approvals == null ? "Default" : `Default: ${preview.data.settings.approvals}`}</option>
                  <option value="full">Full: no approvals</option>
                  <option value="edits">Edits: commands need approval</option>
                  <option value="ask">Ask: edits need approval too</option>
                </Select>
              )}
            </Field>
            <Field label="Provider">
              {(control) => (
                <Select {...control} value={form.provider} onChange={(event) => { change({ provider: event.target.value }); }}>
                  <option value="">{`Default: ${providers.find((each) => each.is_default)?.name ?? "local"}`}</option>
                  {providers.map((each) => <option key={each.name} value={each.name} disabled={!each.available}>{each.name}{each.available ? "" : " (not available)"}</option>)}
                </Select>
              )}
            </Field>
            <Field label="Network">
              {(control) => (
                <Select {...control} value={form.network} onChange={(event) => { change({ network: event.target.value }); }}>
                  <option value="">Default</option>
                  {Object.entries(NETWORK_WORDS).map(([value, word]) => <option key={value} value={value}>{word}</option>)}
                </Select>
              )}
            </Field>
            {form.network === "allow" && <Field label="Allowed hosts">{(control) => <TextInput {...control} placeholder="example.org, *.example.com" value={form.hosts} onChange={(event) => { change({ hosts: event.target.value }); }} />}</Field>}
            <Field label="Limit: turns">{(control) => <TextInput {...control} inputMode="numeric" placeholder="no limit" value={form.turns} onChange={(event) => { change({ turns: event.target.value }); }} />}</Field>
            <Field label="Limit: cost in US$">{(control) => <TextInput {...control} inputMode="decimal" placeholder="no limit" value={form.cost} onChange={(event) => { change({ cost: event.target.value }); }} />}</Field>
            <Field label="Memory in GB">{(control) => <TextInput {...control} inputMode="decimal" placeholder={String(preview.data?.settings.resources?.memory_gb ?? 4)} value={form.memory} onChange={(event) => { change({ memory: event.target.value }); }} />}</Field>
            <div className="md:col-span-2">
              <Field label="Checks, one command per line" hint="The agent works until all of them succeed.">{(control) => <TextArea {...control} rows={2} placeholder="make test" value={form.checks} onChange={(event) => { change({ checks: event.target.value }); }} className="font-mono text-code" />}</Field>
            </div>
            <div className="md:col-span-2"><Checkbox label="Keep the sandbox running when the work is done" checked={form.keeps} onChange={(event) => { change({ keeps: event.target.checked }); }} /></div>
          </div>
        </details>
        {failure !== null && <Notice tone="bad">{describeFailure(failure)}</Notice>}
        <div className="flex flex-wrap items-center gap-4">
          <Button type="submit" tone="primary" isBusy={isBusy} disabled={numbers !== null} icon={<Play size={15} aria-hidden />}>{form.prompt.trim() === "" ? "Start and wait" : "Start"}</Button>
          <Readiness missing={missing} needsAgent={needsAgent} agent={agent} provider={preview.data?.provider ?? null} />
        </div>
      </form>
    </div>
  );
}

function describeAgent(agent: Agent): string {
  const version = agent.version == null ? "" : ` ${agent.version}`;
  return `${capitalize(agent.title)}${version}. ${agent.abilities.steer ? "Can be steered during a turn." : "Takes messages between turns."}`;
}

function Readiness({ missing, needsAgent, agent, provider }: { missing: string | null; needsAgent: boolean; agent: Agent | null; provider: string | null }) {
  if (missing !== null || needsAgent) {
    return (
      <p role="status" className="flex min-w-0 flex-1 items-start gap-2 text-control text-attention">
        <TriangleAlert size={16} className="mt-0.5 shrink-0" aria-hidden />
        <span>
          <InlineCode text={missing ?? "No agent is ready. Choose the demo agent to try, or install one."} /> <Link to="/settings" search={{ section: "agents" }} className="underline">Agents</Link>
        </span>
      </p>
    );
  }
  if (provider === null) return null;
  return (
    <p role="status" className="flex items-center gap-2 text-control text-muted">
      <CircleCheck size={16} className="text-ok" aria-hidden />
      {agent === null ? `Ready: a sandbox of the provider ${provider}, without an agent` : `Ready: ${agent.name} in a sandbox of the provider ${provider}`}
    </p>
  );
}
