import type { Agent, Project, Schemas } from "@/api/types";

export type NewSandboxRequest = Schemas["NewSandbox"];

/** The fields of the form, as people typed them. Empty means: the project's or the server's default. */
export interface NewSandboxForm {
  prompt: string;
  title: string;
  projectId: string;
  repository: string;
  base: string;
  agent: string;
  model: string;
  mode: string;
  approvals: string;
  provider: string;
  network: string;
  hosts: string;
  turns: string;
  cost: string;
  memory: string;
  checks: string;
  keeps: boolean;
}

export const EMPTY_FORM: NewSandboxForm = {
  prompt: "", title: "", projectId: "", repository: "", base: "", agent: "", model: "", mode: "", approvals: "", provider: "",
  network: "", hosts: "", turns: "", cost: "", memory: "", checks: "", keeps: false,
};

/** A path on the server's machine, or a URL. */
function isPath(repository: string): boolean {
  return repository.startsWith("/") || repository.startsWith("~") || repository.startsWith(".");
}

/** Builds the request. Fields that are empty are absent, so that defaults apply. */
export function toRequest(form: NewSandboxForm): NewSandboxRequest {
  const request: NewSandboxRequest = { end: form.keeps || form.prompt.trim() === "" ? "keep" : "when_done" };
  if (form.prompt.trim() !== "") request.prompt = form.prompt;
  if (form.title.trim() !== "") request.title = form.title.trim();
  if (form.projectId !== "") request.project_id = form.projectId;
  const repository = form.repository.trim();
  const base = form.base.trim();
  if (repository !== "") request.repo = { ...(isPath(repository) ? { path: repository } : { url: repository }), ...(base === "" ? {} : { base }) };
  if (form.agent !== "") request.agent = form.agent;
  if (form.model.trim() !== "") request.model = form.model.trim();
  if (form.mode !== "") request.mode = form.mode as Schemas["Mode"];
  if (form.approvals !== "") request.approvals = form.approvals as Schemas["ApprovalMode"];
  if (form.provider !== "") request.provider = form.provider as Schemas["ProviderKind"];
  if (form.network !== "") {
    const allow = form.network === "allow" ? form.hosts.split(/[\s,]+/).filter(Boolean) : [];
    request.network = { policy: form.network as Schemas["NetworkPolicy"], ...(allow.length > 0 ? { allow } : {}) };
  }
  const limits: Schemas["AgentLimits"] = {};
  if (form.turns.trim() !== "") limits.turns = Number(form.turns);
  if (form.cost.trim() !== "") limits.cost_usd = Number(form.cost);
  if (Object.keys(limits).length > 0) request.limits = limits;
  if (form.memory.trim() !== "") request.resources = { memory_gb: Number(form.memory) };
  const checks = form.checks.split("\n").map((line) => line.trim()).filter(Boolean);
  if (checks.length > 0) request.continuous = { enabled: true, checks };
  return request;
}

/** A sentence for each number that the server would reject. */
export function checkNumbers(form: NewSandboxForm): string | null {
  for (const [name, text] of [["Turns", form.turns], ["Cost", form.cost], ["Memory", form.memory]] as const) {
    if (text.trim() !== "" && !(Number(text) > 0)) return `${name}: enter a number above 0, or leave it empty.`;
  }
  return null;
}

/** The agents to choose from: those that can run first. */
export function sortAgents(agents: readonly Agent[]): Agent[] {
  return agents.toSorted((a, b) => Number(b.usable) - Number(a.usable) || Number(a.name === "demo") - Number(b.name === "demo") || (a.name < b.name ? -1 : 1));
}

export function projectRepository(project: Project | undefined): string {
  return project?.repo?.path ?? project?.repo?.url ?? "";
}
