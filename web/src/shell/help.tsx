import { Dialog } from "@/components/dialog";
import { Kbd } from "@/components/kbd";

const GROUPS: readonly { title: string; entries: readonly (readonly [string, string])[] }[] = [
  {
    title: "Everywhere",
    entries: [
      ["Ctrl K", "Find a sandbox or an action"],
      ["?", "Show this help"],
      ["g h", "Go to Home"],
      ["g n", "Start a new sandbox"],
      ["g a", "Go to Approvals"],
      ["g m", "Go to Monitor"],
      ["g p", "Go to Projects"],
      ["g s", "Go to Settings"],
      ["n", "Go to the next approval"],
      ["F6", "Move to the next pane, also from the terminal"],
    ],
  },
  { title: "Lists", entries: [["j k", "Next or previous row"], ["Enter", "Open the row"], ["/", "Search"]] },
  {
    title: "Sandbox",
    entries: [
      ["i", "Write a message"],
      ["Enter", "Send, steer or queue, as the button says"],
      ["Alt Enter", "Queue for after the turn"],
      ["Ctrl .", "Interrupt the agent"],
      ["a", "Allow the approval in view"],
      ["d", "Deny the approval in view"],
      ["[ ]", "Previous or next turn"],
      ["Ctrl F", "Find in the timeline"],
      ["End", "Go to the newest step"],
    ],
  },
  {
    title: "Changes",
    entries: [
      ["j k", "Next or previous line"],
      ["J K", "Next or previous file"],
      ["c", "Comment on the line"],
      ["v", "Mark the file as viewed"],
      ["f", "Use the full width"],
    ],
  },
];

export function HelpDialog({ isOpen, onClose }: { isOpen: boolean; onClose: () => void }) {
  return (
    <Dialog isOpen={isOpen} onClose={onClose} title="Keyboard shortcuts" description="Single keys are off while you type." width="md:max-w-2xl">
      <div className="grid gap-x-8 gap-y-5 md:grid-cols-2">
        {GROUPS.map((group) => (
          <section key={group.title}>
            <h3 className="mb-1.5 text-meta font-semibold text-muted">{group.title}</h3>
            <dl className="flex flex-col gap-1.5">
              {group.entries.map(([keys, action]) => (
                <div key={keys + action} className="flex items-center justify-between gap-4">
                  <dt>{action}</dt>
                  <dd><Kbd keys={keys} /></dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </Dialog>
  );
}
