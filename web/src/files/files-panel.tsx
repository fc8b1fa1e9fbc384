export function FilesPanel(_: object) { return null; }
