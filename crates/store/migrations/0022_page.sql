-- Sign-ins of the web page. Each belongs to the token that it was made with, and ends with it.
CREATE TABLE sign_ins (
    id TEXT PRIMARY KEY,
    hash TEXT NOT NULL,
    token_id TEXT NOT NULL REFERENCES tokens (id) ON DELETE CASCADE,
    user_agent TEXT,
    created_at BIGINT NOT NULL,
    last_used_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX sign_ins_token ON sign_ins (token_id);

-- Ports of a running sandbox on which programs listen.
CREATE TABLE open_ports (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    port BIGINT NOT NULL,
    program TEXT,
    opened_at BIGINT NOT NULL,
    PRIMARY KEY (sandbox_id, port)
);

-- Previews: links to a port of a sandbox, with the rights of the token and the sign-in that created them.
CREATE TABLE previews (
    id TEXT PRIMARY KEY,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    port BIGINT NOT NULL,
    hash TEXT NOT NULL,
    token_id TEXT NOT NULL REFERENCES tokens (id) ON DELETE CASCADE,
    sign_in_id TEXT REFERENCES sign_ins (id) ON DELETE CASCADE,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX previews_hash ON previews (hash);
CREATE INDEX previews_sandbox ON previews (sandbox_id);
CREATE INDEX previews_token ON previews (token_id);
CREATE INDEX previews_sign_in ON previews (sign_in_id);
