export function PreviewPanel(_: object) { return null; }
