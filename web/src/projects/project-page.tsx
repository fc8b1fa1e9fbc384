import { useState, type FormEvent } from "react";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useQuery } from "@tanstack/react-query";
import { ArrowLeft, Plus, Trash2 } from "lucide-react";
import { api, unwrap } from "@/api/client";
import { keys, queryClient, useAgents } from "@/api/queries";
import type { Project, Schemas } from "@/api/types";
import { Button, buttonClass, IconButton } from "@/components/button";
import { Facts } from "@/components/facts";
import { Field, Select, TextInput } from "@/components/field";
import { FormDialog } from "@/components/form-dialog";
import { FailureNotice, Skeleton } from "@/components/notice";
import { Page } from "@/components/page";
import { SectionBox } from "@/components/section-box";
import { reportSuccess } from "@/components/toast";
import { useAction } from "@/components/use-action";
import { NETWORK_WORDS } from "@/sandbox/network-section";
import { SecretList } from "@/secrets/secret-list";
import { useTitle } from "@/shell/title";
import { formatCost, formatDateTime } from "@/text/format";
import { MemberList } from "./member-list";

const route = getRouteApi("/projects/$id");

export function ProjectPage() {
  const { id } = route.useParams();
  const project = useQuery({ queryKey: ["project", id], queryFn: () => unwrap(api.GET("/api/v1/projects/{id}", { params: { path: { id } } })) });
  useTitle(project.data?.name ?? "Project");
  if (project.error !== null) return <div className="p-6"><FailureNotice failure={project.error} onRetry={() => void project.refetch()} /></div>;
  if (project.data === undefined) return <Skeleton label="Loading the project" />;
  return <LoadedProject key={project.data.updated_at} project={project.data} />;
}

async function changeProject(id: string, body: Schemas["ChangeProject"]): Promise<void> {
  await unwrap(api.PATCH("/api/v1/projects/{id}", { params: { path: { id } }, body }));
  await Promise.all([queryClient.invalidateQueries({ queryKey: keys.projects }), queryClient.invalidateQueries({ queryKey: ["project", id] })]);
  reportSuccess("Project changed");
}

function LoadedProject({ project }: { project: Project }) {
  const [isRemoving, setRemoving] = useState(false);
  const navigate = useNavigate();
  return (
    <Page
      title={project.name}
      width="max-w-3xl"
      actions={
        <div className="flex items-center gap-2">
          <Link to="/projects" className={buttonClass("quiet")}><ArrowLeft size={15} aria-hidden />Projects</Link>
          <Link to="/new" search={{ project: project.id }} className={buttonClass("primary")}><Plus size={15} aria-hidden />New sandbox</Link>
        </div>
      }
    >
      <GeneralForm project={project} />
      <DefaultsForm project={project} />
      <BudgetForm project={project} />
      <SectionBox title="Members" description="People who may see or use this project."><MemberList projectId={project.id} /></SectionBox>
      <SectionBox title="Secrets" description="Values are sealed and never shown again."><SecretList projectId={project.id} /></SectionBox>
      <SectionBox
        title="Details"
        action={!project.is_default && <IconButton label="Remove the project" size="small" onClick={() => { setRemoving(true); }}><Trash2 size={15} aria-hidden /></IconButton>}
      >
        <Facts facts={[["Id", project.id], ["Created", formatDateTime(project.created_at)], ["Model cost", project.usage?.cost == null ? null : formatCost(project.usage.cost)]]} />
      </SectionBox>
      {isRemoving && (
        <FormDialog
          title={`Remove ${project.name}`}
          description="Only a project without sessions can be removed."
          submit="Remove"
          isDanger
          onClose={() => { setRemoving(false); }}
          onSubmit={async () => {
            await unwrap(api.DELETE("/api/v1/projects/{id}", { params: { path: { id: project.id } } }));
            await queryClient.invalidateQueries({ queryKey: keys.projects });
            await navigate({ to: "/projects" });
          }}
        />
      )}
    </Page>
  );
}

function GeneralForm({ project }: { project: Project }) {
  const [name, setName] = useState(project.name);
  const [repository, setRepository] = useState(project.repo?.path ?? project.repo?.url ?? "");
  const [base, setBase] = useState(project.repo?.base ?? "");
  const saving = useAction("Project not changed");
  const save = (event: FormEvent) => {
    event.preventDefault();
    const place = repository.trim();
    const repo = place === "" ? {} : { repo: { ...(place.startsWith("/") ? { path: place } : { url: place }), ...(base.trim() === "" ? {} : { base: base.trim() }) } };
    void saving.run(() => changeProject(project.id, { name: name.trim(), ...repo }));
  };
  return (
    <SectionBox title="General">
      <form onSubmit={save} className="grid gap-4 md:grid-cols-2">
        <Field label="Name">{(control) => <TextInput {...control} value={name} onChange={(event) => { setName(event.target.value); }} />}</Field>
        <Field label="Base branch">{(control) => <TextInput {...control} placeholder="the current one" value={base} onChange={(event) => { setBase(event.target.value); }} />}</Field>
        <div className="md:col-span-2"><Field label="Repository" hint="A path on the server's machine, or a URL.">{(control) => <TextInput {...control} value={repository} onChange={(event) => { setRepository(event.target.value); }} />}</Field></div>
        <div><Button type="submit" isBusy={saving.isBusy} disabled={name.trim() === ""}>Save</Button></div>
      </form>
    </SectionBox>
  );
}

function DefaultsForm({ project }: { project: Project }) {
  const defaults = project.defaults as { agent?: unknown; model?: unknown; network?: { policy?: unknown } | null };
  const agents = useAgents().data ?? [];
  const [agent, setAgent] = useState(typeof defaults.agent === "string" ? defaults.agent : "");
  const [model, setModel] = useState(typeof defaults.model === "string" ? defaults.model : "");
  const [policy, setPolicy] = useState(typeof defaults.network?.policy === "string" ? defaults.network.policy : "");
  const saving = useAction("Defaults not changed");
  const save = (event: FormEvent) => {
    event.preventDefault();
    const next: Record<string, unknown> = { ...project.defaults };
    const set = (name: string, value: unknown) => {
      if (value === "") Reflect.deleteProperty(next, name);
      else next[name] = value;
    };
    set("agent", agent);
    set("model", model.trim());
    if (policy === "") set("network", "");
    else if (policy !== defaults.network?.policy) set("network", { policy });
    void saving.run(() => changeProject(project.id, { defaults: next }));
  };
  return (
    <SectionBox title="Defaults of its sandboxes" description="A request can choose otherwise.">
      <form onSubmit={save} className="grid gap-4 md:grid-cols-3">
        <Field label="Agent">
          {(control) => (
            <Select {...control} value={agent} onChange={(event) => { setAgent(event.target.value); }}>
              <option value="">Automatic</option>
              {agents.map((each) => <option key={each.name} value={each.name}>{each.name}</option>)}
            </Select>
          )}
        </Field>
        <Field label="Model">{(control) => <TextInput {...control} placeholder="the agent's default" value={model} onChange={(event) => { setModel(event.target.value); }} />}</Field>
        <Field label="Network">
          {(control) => (
            <Select {...control} value={policy} onChange={(event) => { setPolicy(event.target.value); }}>
              <option value="">Default</option>
              {Object.entries(NETWORK_WORDS).map(([value, word]) => <option key={value} value={value}>{word}</option>)}
            </Select>
          )}
        </Field>
        <div><Button type="submit" isBusy={saving.isBusy}>Save</Button></div>
      </form>
      {Object.keys(project.defaults).length > 0 && (
        <details className="mt-3 text-control text-muted"><summary>All defaults</summary><pre className="scroll-area mt-2 rounded-md bg-raised p-3 font-mono text-code">{JSON.stringify(project.defaults, null, 2)}</pre></details>
      )}
    </SectionBox>
  );
}

function BudgetForm({ project }: { project: Project }) {
  const budget = project.budget ?? null;
  const [usd, setUsd] = useState(budget === null ? "" : String(budget.usd));
  const [per, setPer] = useState<Schemas["BudgetPeriod"]>(budget?.per ?? "month");
  const saving = useAction("Budget not changed");
  const save = (event: FormEvent) => {
    event.preventDefault();
    void saving.run(() => changeProject(project.id, { budget: { usd: Number(usd), per } }));
  };
  return (
    <SectionBox title="Budget" description="When it is used up, the project's agents are paused.">
      {budget !== null && <p className="mb-3 text-control"><span className="font-semibold">{formatCost(budget.spent ?? 0)}</span> of {formatCost(budget.usd)} used{budget.until == null ? "" : `, until ${formatDateTime(budget.until)}`}</p>}
      <form onSubmit={save} className="flex flex-wrap items-end gap-3">
        <div className="w-36"><Field label="US dollars">{(control) => <TextInput {...control} inputMode="decimal" value={usd} onChange={(event) => { setUsd(event.target.value); }} />}</Field></div>
        <div className="w-40">
          <Field label="Period">
            {(control) => (
              <Select {...control} value={per} onChange={(event) => { setPer(event.target.value as Schemas["BudgetPeriod"]); }}>
                <option value="day">per day</option>
                <option value="month">per month</option>
                <option value="ever">in total</option>
              </Select>
            )}
          </Field>
        </div>
        <Button type="submit" isBusy={saving.isBusy} disabled={!(Number(usd) > 0)}>Save</Button>
      </form>
    </SectionBox>
  );
}
