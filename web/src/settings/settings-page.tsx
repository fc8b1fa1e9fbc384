import { getRouteApi, Link } from "@tanstack/react-router";
import { Bot, KeyRound, LogIn, MonitorCog, Ticket, Users, type LucideIcon } from "lucide-react";
import { AgentList } from "@/agents/agent-list";
import { Page } from "@/components/page";
import { SectionBox } from "@/components/section-box";
import type { SettingsSection } from "@/router";
import { SecretList } from "@/secrets/secret-list";
import { useTitle } from "@/shell/title";
import { SignInSessionList } from "@/sign-in/sign-in-session-list";
import { TokenList } from "@/tokens/token-list";
import { UserList } from "@/users/user-list";
import { PageSettings } from "./page-settings";

const route = getRouteApi("/settings");

const SECTIONS: readonly { id: SettingsSection; label: string; icon: LucideIcon }[] = [
  { id: "agents", label: "Agents", icon: Bot },
  { id: "secrets", label: "Secrets", icon: KeyRound },
  { id: "users", label: "Users", icon: Users },
  { id: "tokens", label: "Tokens", icon: Ticket },
  { id: "sign-in", label: "Sign-in sessions", icon: LogIn },
  { id: "page", label: "This browser", icon: MonitorCog },
];

export function SettingsPage() {
  useTitle("Settings");
  const { section = "agents" } = route.useSearch();
  return (
    <Page title="Settings">
      <div className="flex flex-col gap-5 md:flex-row md:gap-8">
        <nav aria-label="Settings" className="flex shrink-0 gap-1 overflow-x-auto md:w-44 md:flex-col">
          {SECTIONS.map(({ id, label, icon: Icon }) => (
            <Link
              key={id}
              to="/settings"
              search={{ section: id }}
              aria-current={id === section ? "page" : undefined}
              className="flex h-9 shrink-0 items-center gap-2 rounded-md px-3 text-control text-muted hover:bg-sunk aria-[current]:bg-accent-tint aria-[current]:font-semibold aria-[current]:text-accent max-md:h-11"
            >
              <Icon size={16} aria-hidden />
              {label}
            </Link>
          ))}
        </nav>
        <div className="min-w-0 flex-1"><Section id={section} /></div>
      </div>
    </Page>
  );
}

function Section({ id }: { id: SettingsSection }) {
  switch (id) {
    case "agents":
      return <SectionBox title="Agents" description="Coding programs on the server's machine."><AgentList /></SectionBox>;
    case "secrets":
      return <SectionBox title="Secrets" description="Of the whole server and of all projects you can see. Values can be written and never read."><SecretList /></SectionBox>;
    case "users":
      return <SectionBox title="Users"><UserList /></SectionBox>;
    case "tokens":
      return <SectionBox title="Tokens" description="API keys for programs and for signing in."><TokenList /></SectionBox>;
    case "sign-in":
      return <SectionBox title="Sign-in sessions" description="Browsers that are signed in as you."><SignInSessionList /></SectionBox>;
    case "page":
      return <SectionBox title="This browser" description="Stored only here."><PageSettings /></SectionBox>;
  }
}
