export function TerminalPanel(_: object) { return null; }
