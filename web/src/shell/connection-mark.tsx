import { CloudOff, Wifi, WifiOff } from "lucide-react";
import { useConnection } from "@/events/feed";
import { formatDuration } from "@/text/format";
import { useNow } from "./clock";

/** The true state of the connection to the server. */
export function ConnectionBar() {
  const connection = useConnection();
  const now = useNow();
  if (connection.state !== "offline") return null;
  const lost = connection.lostAt === null ? "" : ` for ${formatDuration(now - connection.lostAt)}`;
  return (
    <div role="status" className="flex items-center justify-center gap-2 border-b border-line bg-attention-tint px-4 py-1.5 text-control text-attention">
      <CloudOff size={16} aria-hidden />
      <span>
        <strong className="font-semibold">Not connected{lost}.</strong> What you see may be old. The page reconnects by itself and loads what it missed.
      </span>
    </div>
  );
}

export function ConnectionMark() {
  const { state } = useConnection();
  const [Icon, text, tone] =
    state === "live"
      ? ([Wifi, "Connected: events arrive live", "text-ok"] as const)
      : state === "connecting"
        ? ([Wifi, "Connecting to the server", "text-muted"] as const)
        : ([WifiOff, "Not connected", "text-attention"] as const);
  return (
    <span title={text} className={`inline-flex size-8 items-center justify-center ${tone}`}>
      <Icon size={17} aria-hidden />
      <span className="sr-only">{text}</span>
    </span>
  );
}
