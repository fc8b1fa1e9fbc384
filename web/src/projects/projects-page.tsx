import { useState } from "react";
import { Link, useNavigate } from "@tanstack/react-router";
import { FolderGit2, Plus } from "lucide-react";
import { api, unwrap } from "@/api/client";
import { keys, queryClient, useProjects, useSandboxes } from "@/api/queries";
import type { Project } from "@/api/types";
import { Button } from "@/components/button";
import { Field, TextInput } from "@/components/field";
import { FormDialog } from "@/components/form-dialog";
import { FailureNotice, Skeleton } from "@/components/notice";
import { Page } from "@/components/page";
import { hasEnded } from "@/sandboxes/status";
import { Meter } from "@/sandbox/meters";
import { useTitle } from "@/shell/title";
import { formatCost, plural } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";

export function ProjectsPage() {
  useTitle("Projects");
  const projects = useProjects();
  const [isCreating, setCreating] = useState(false);
  return (
    <Page title="Projects" actions={<Button tone="primary" icon={<Plus size={16} aria-hidden />} onClick={() => { setCreating(true); }}>New project</Button>}>
      {projects.error !== null && <FailureNotice failure={projects.error} onRetry={() => void projects.refetch()} />}
      {projects.data === undefined && projects.error === null && <Skeleton label="Loading the projects" />}
      <ul className="grid gap-3 md:grid-cols-2">{projects.data?.map((project) => <ProjectCard key={project.id} project={project} />)}</ul>
      {isCreating && <CreateProject onClose={() => { setCreating(false); }} />}
    </Page>
  );
}

function ProjectCard({ project }: { project: Project }) {
  const live = (useSandboxes().data ?? []).filter((row) => row.project_id === project.id && !hasEnded(row)).length;
  const budget = project.budget ?? null;
  return (
    <li className="relative rounded-lg border border-line p-4 hover:bg-raised">
      <Link to="/projects/$id" params={{ id: project.id }} className="flex items-center gap-2 text-body font-semibold before:absolute before:inset-0">
        <FolderGit2 size={17} className="shrink-0 text-muted" aria-hidden />
        <SafeText text={project.name} />
        {project.is_default && <span className="rounded-full bg-sunk px-2 text-meta font-normal text-muted">default</span>}
      </Link>
      <p className="mt-1 truncate text-control text-muted"><SafeText text={project.repo?.path ?? project.repo?.url ?? "No repository"} /></p>
      <div className="mt-3 flex items-center gap-6">
        <span className="text-meta text-muted">{plural(live, "running sandbox", "running sandboxes")}</span>
        {budget !== null && <Meter label="Budget" value={`${formatCost(budget.spent ?? 0)} of ${formatCost(budget.usd)} ${budget.per === "ever" ? "in total" : `per ${budget.per}`}`} share={budget.usd > 0 ? (budget.spent ?? 0) / budget.usd : null} />}
      </div>
    </li>
  );
}

function CreateProject({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const [name, setName] = useState("");
  const [repository, setRepository] = useState("");
  return (
    <FormDialog
      title="New project"
      description="A project has a repository, defaults for its sandboxes, a budget, secrets and members."
      submit="Create"
      canSubmit={name.trim() !== ""}
      onClose={onClose}
      onSubmit={async () => {
        const place = repository.trim();
        const repo = place === "" ? {} : { repo: place.startsWith("/") ? { path: place } : { url: place } };
        const project = await unwrap(api.POST("/api/v1/projects", { body: { name: name.trim(), ...repo } }));
        await queryClient.invalidateQueries({ queryKey: keys.projects });
        await navigate({ to: "/projects/$id", params: { id: project.id } });
      }}
    >
      <Field label="Name">{(control) => <TextInput {...control} autoFocus value={name} onChange={(event) => { setName(event.target.value); }} />}</Field>
      <Field label="Repository" hint="A path on the server's machine, or a URL.">{(control) => <TextInput {...control} value={repository} onChange={(event) => { setRepository(event.target.value); }} />}</Field>
    </FormDialog>
  );
}
