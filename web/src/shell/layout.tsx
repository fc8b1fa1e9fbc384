import { useEffect, useState } from "react";
import { Link, Outlet, useNavigate, useRouterState } from "@tanstack/react-router";
import { Activity, CirclePlus, FolderGit2, Hand, House, Keyboard, Moon, Search, Settings, Sun, SunMoon, type LucideIcon } from "lucide-react";
import { useApprovals, useSandboxes } from "@/api/queries";
import { IconButton } from "@/components/button";
import { Menu } from "@/components/menu";
import { ToastRegion } from "@/components/toast";
import { useConnection } from "@/events/feed";
import { SignInScreen } from "@/sign-in/sign-in-screen";
import { useSignedOut } from "@/sign-in/sign-in-state";
import { ConnectionBar, ConnectionMark } from "./connection-mark";
import { HelpDialog } from "./help";
import { Logo } from "./logo";
import { needsYou, watchNeeds } from "./notifications";
import { Palette } from "./palette";
import { focusNextPane } from "./panes";
import { useShortcuts } from "./shortcuts";
import { chooseTheme, useTheme } from "./theme";

interface Destination {
  to: string;
  label: string;
  icon: LucideIcon;
  keys: string;
}

const DESTINATIONS: readonly Destination[] = [
  { to: "/", label: "Home", icon: House, keys: "g h" },
  { to: "/new", label: "New", icon: CirclePlus, keys: "g n" },
  { to: "/approvals", label: "Approvals", icon: Hand, keys: "g a" },
  { to: "/monitor", label: "Monitor", icon: Activity, keys: "g m" },
  { to: "/projects", label: "Projects", icon: FolderGit2, keys: "g p" },
  { to: "/settings", label: "Settings", icon: Settings, keys: "g s" },
];

/** The frame of every page: rail or bottom tabs, connection, palette, help, toasts. */
export function Layout() {
  const isSignedOut = useSignedOut();
  const navigate = useNavigate();
  const path = useRouterState({ select: (state) => state.location.pathname });
  const [isHelpOpen, setHelpOpen] = useState(false);
  const [isPaletteOpen, setPaletteOpen] = useState(false);
  const isFrameless = path === "/sign-in";

  useShortcuts([
    { keys: "?", run: () => { setHelpOpen(true); } },
    { keys: "Ctrl+K", run: () => { setPaletteOpen(true); }, inInputs: true },
    { keys: "F6", run: focusNextPane, inInputs: true },
    ...DESTINATIONS.map(({ to, keys }) => ({ keys, run: () => void navigate({ to }) })),
  ]);
  useEffect(() => watchNeeds((id) => void navigate({ to: "/sandboxes/$id", params: { id } })), [navigate]);

  if (isFrameless) return <Outlet />;
  if (isSignedOut) return <SignInScreen />;
  return (
    <div className="flex h-full flex-col md:flex-row">
      <a href="#main" className="sr-only z-50 rounded bg-bg p-2 focus:not-sr-only focus:absolute">Skip to the content</a>
      <Rail onSearch={() => { setPaletteOpen(true); }} onHelp={() => { setHelpOpen(true); }} />
      <div className="flex min-h-0 min-w-0 flex-1 flex-col">
        <ConnectionBar />
        <main id="main" className="flex min-h-0 flex-1 flex-col" tabIndex={-1}>
          <Outlet />
        </main>
      </div>
      <BottomTabs path={path} onSearch={() => { setPaletteOpen(true); }} />
      <HelpDialog isOpen={isHelpOpen} onClose={() => { setHelpOpen(false); }} />
      {isPaletteOpen && <Palette onClose={() => { setPaletteOpen(false); }} onHelp={() => { setHelpOpen(true); }} />}
      <NextApproval />
      <ToastRegion />
    </div>
  );
}

function Rail({ onSearch, onHelp }: { onSearch: () => void; onHelp: () => void }) {
  return (
    <nav aria-label="Pages" data-pane="Pages" className="hidden w-14 shrink-0 flex-col items-center gap-1 border-r border-line bg-raised py-3 md:flex">
      <Link to="/" aria-label="Atoll, home" className="mb-2 rounded-lg"><Logo size={28} /></Link>
      {DESTINATIONS.map((destination) => <RailLink key={destination.to} destination={destination} />)}
      <div className="flex-1" />
      <ConnectionMark />
      <IconButton label="Find a sandbox or an action (Ctrl+K)" onClick={onSearch}><Search size={18} aria-hidden /></IconButton>
      <IconButton label="Keyboard shortcuts (?)" onClick={onHelp}><Keyboard size={18} aria-hidden /></IconButton>
      <ThemeMenu />
    </nav>
  );
}

function useBadge(to: string): number {
  const approvals = useApprovals().data?.length ?? 0;
  const needs = needsYou(useSandboxes().data ?? []).length;
  if (to === "/approvals") return approvals;
  return to === "/" ? needs : 0;
}

function RailLink({ destination }: { destination: Destination }) {
  const { to, label, icon: Icon, keys } = destination;
  const badge = useBadge(to);
  return (
    <Link
      to={to}
      activeOptions={{ exact: to === "/" }}
      title={`${label} (${keys})`}
      className="group relative flex size-10 items-center justify-center rounded-lg text-muted hover:bg-sunk hover:text-text data-[status=active]:bg-accent-tint data-[status=active]:text-accent"
    >
      <Icon size={20} aria-hidden />
      <span className="sr-only">{label}</span>
      <Badge count={badge} />
    </Link>
  );
}

function Badge({ count }: { count: number }) {
  if (count === 0) return null;
  return (
    <span className="absolute -top-0.5 -right-0.5 min-w-4 max-md:-top-1.5 max-md:-right-3 rounded-full bg-attention px-1 text-center text-[0.6875rem] leading-4 font-semibold text-bg">
      {count}
      <span className="sr-only"> waiting</span>
    </span>
  );
}

function ThemeMenu() {
  const { choice } = useTheme();
  const Icon = choice === "dark" ? Moon : choice === "light" ? Sun : SunMoon;
  return (
    <Menu
      label="Colours"
      trigger={<IconButton label={`Colours: ${choice}`}><Icon size={18} aria-hidden /></IconButton>}
      actions={[
        { label: "As the system", icon: <SunMoon size={15} />, run: () => { chooseTheme("system"); } },
        { label: "Light", icon: <Sun size={15} />, run: () => { chooseTheme("light"); } },
        { label: "Dark", icon: <Moon size={15} />, run: () => { chooseTheme("dark"); } },
      ]}
    />
  );
}

const PHONE_TABS = ["/", "/approvals", "/new", "/monitor"];

/** Below 768 px. A sandbox has its own bottom area, so the tabs are hidden there. */
function BottomTabs({ path, onSearch }: { path: string; onSearch: () => void }) {
  if (/^\/sandboxes\/[^/]+$/.test(path)) return null;
  return (
    <nav aria-label="Pages" className="flex h-14 shrink-0 items-stretch border-t border-line bg-raised pb-[env(safe-area-inset-bottom)] md:hidden">
      {DESTINATIONS.filter(({ to }) => PHONE_TABS.includes(to)).map((destination) => <BottomTab key={destination.to} destination={destination} />)}
      <button type="button" onClick={onSearch} className="flex flex-1 flex-col items-center justify-center gap-0.5 text-meta text-muted">
        <Search size={20} aria-hidden />
        More
      </button>
    </nav>
  );
}

function BottomTab({ destination: { to, label, icon: Icon } }: { destination: Destination }) {
  const badge = useBadge(to);
  return (
    <Link
      to={to}
      activeOptions={{ exact: to === "/" }}
      className="flex flex-1 flex-col items-center justify-center gap-0.5 text-meta text-muted data-[status=active]:text-accent"
    >
      <span className="relative">
        <Icon size={20} aria-hidden />
        <Badge count={badge} />
      </span>
      {label}
    </Link>
  );
}

/** `n` opens the sandbox of the oldest approval that is not open already. */
function NextApproval() {
  const navigate = useNavigate();
  const approvals = useApprovals().data ?? [];
  const { state } = useConnection();
  useShortcuts([
    {
      keys: "n",
      run: () => {
        const here = location.pathname.split("/")[2];
        const next = approvals.find((approval) => approval.sandbox_id !== here) ?? approvals[0];
        if (next !== undefined && state !== "connecting") void navigate({ to: "/sandboxes/$id", params: { id: next.sandbox_id } });
      },
    },
  ]);
  return null;
}
