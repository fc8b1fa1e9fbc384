import { createRootRoute, createRoute, createRouter, lazyRouteComponent, Link } from "@tanstack/react-router";
import { EmptyState, FailureNotice } from "@/components/notice";
import { HomePage } from "@/home/home-page";
import { Layout } from "@/shell/layout";

const text = (value: unknown): string | undefined => (typeof value === "string" && value !== "" ? value : undefined);
const number = (value: unknown): number | undefined => (typeof value === "number" && Number.isFinite(value) ? value : undefined);

function oneOf<T extends string>(values: readonly T[], value: unknown): T | undefined {
  return values.find((each) => each === value);
}

const rootRoute = createRootRoute({
  component: Layout,
  notFoundComponent: () => (
    <EmptyState title="This page does not exist" action={<Link to="/" className="text-accent underline">Go to Home</Link>}>
      The address may be incomplete.
    </EmptyState>
  ),
  errorComponent: ({ error }) => (
    <div className="p-6"><FailureNotice failure={error} onRetry={() => { location.reload(); }} /></div>
  ),
});

interface HomeSearch {
  q?: string | undefined;
  group?: (typeof STATUS_GROUPS)[number] | undefined;
  project?: string | undefined;
  agent?: string | undefined;
}

const STATUS_GROUPS = ["needs_you", "working", "waiting", "done"] as const;

export const homeRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/",
  validateSearch: (search: Record<string, unknown>): HomeSearch => ({
    q: text(search.q),
    group: oneOf(STATUS_GROUPS, search.group),
    project: text(search.project),
    agent: text(search.agent),
  }),
  component: HomePage,
});

const signInRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/sign-in",
  component: lazyRouteComponent(() => import("@/sign-in/sign-in-page"), "SignInPage"),
});

export const newRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/new",
  validateSearch: (search: Record<string, unknown>): { project?: string | undefined; prompt?: string | undefined } => ({ project: text(search.project), prompt: text(search.prompt) }),
  component: lazyRouteComponent(() => import("@/new-sandbox/new-page"), "NewPage"),
});

export const SANDBOX_TABS = ["timeline", "changes", "terminal", "files", "preview", "git", "events", "details"] as const;
export type SandboxTab = (typeof SANDBOX_TABS)[number];

interface SandboxSearch {
  tab?: SandboxTab | undefined;
  file?: string | undefined;
  turn?: number | undefined;
  seq?: number | undefined;
  exec?: string | undefined;
}

export const sandboxRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/sandboxes/$id",
  validateSearch: (search: Record<string, unknown>): SandboxSearch => ({
    tab: oneOf(SANDBOX_TABS, search.tab),
    file: text(search.file),
    turn: number(search.turn),
    seq: number(search.seq),
    exec: text(search.exec),
  }),
  component: lazyRouteComponent(() => import("@/sandbox/sandbox-page"), "SandboxPage"),
});

export const replayRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/sandboxes/$id/replay",
  validateSearch: (search: Record<string, unknown>): { seq?: number | undefined } => ({ seq: number(search.seq) }),
  component: lazyRouteComponent(() => import("@/replay/replay-page"), "ReplayPage"),
});

const approvalsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/approvals",
  component: lazyRouteComponent(() => import("@/approvals/approvals-page"), "ApprovalsPage"),
});

const monitorRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/monitor",
  component: lazyRouteComponent(() => import("@/monitor/monitor-page"), "MonitorPage"),
});

const projectsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/projects",
  component: lazyRouteComponent(() => import("@/projects/projects-page"), "ProjectsPage"),
});

export const projectRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/projects/$id",
  component: lazyRouteComponent(() => import("@/projects/project-page"), "ProjectPage"),
});

export const SETTINGS_SECTIONS = ["agents", "secrets", "users", "tokens", "sign-in", "page"] as const;
export type SettingsSection = (typeof SETTINGS_SECTIONS)[number];

export const settingsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/settings",
  validateSearch: (search: Record<string, unknown>): { section?: SettingsSection | undefined } => ({ section: oneOf(SETTINGS_SECTIONS, search.section) }),
  component: lazyRouteComponent(() => import("@/settings/settings-page"), "SettingsPage"),
});

const routeTree = rootRoute.addChildren([
  homeRoute, signInRoute, newRoute, sandboxRoute, replayRoute, approvalsRoute, monitorRoute, projectsRoute, projectRoute, settingsRoute,
]);

export const router = createRouter({ routeTree, defaultPreload: "intent", scrollRestoration: false });

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
