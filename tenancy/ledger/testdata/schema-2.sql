PRAGMA application_id = 1397506865;
CREATE TABLE migrations (version INTEGER PRIMARY KEY, applied_ns INTEGER NOT NULL) STRICT;
CREATE TABLE requests (
		seq              INTEGER PRIMARY KEY,
		id               TEXT NOT NULL UNIQUE,
		request_id       TEXT NOT NULL,
		decision_id      TEXT NOT NULL,
		policy_revision  TEXT NOT NULL,
		policy_rule      TEXT NOT NULL,
		tenant           TEXT NOT NULL,
		team             TEXT NOT NULL,
		principal        TEXT NOT NULL,
		key_id           TEXT NOT NULL,
		operation        TEXT NOT NULL,
		dialect          TEXT NOT NULL,
		model            TEXT NOT NULL,
		requested_model  TEXT NOT NULL,
		pool             TEXT NOT NULL,
		worker           TEXT NOT NULL,
		class            TEXT NOT NULL,
		labels           TEXT NOT NULL,
		status           INTEGER NOT NULL,
		error_code       TEXT NOT NULL,
		outcome          TEXT NOT NULL,
		phase            TEXT NOT NULL,
		flags            INTEGER NOT NULL,
		attempts         INTEGER NOT NULL,
		input_tokens     INTEGER NOT NULL,
		cached_tokens    INTEGER NOT NULL,
		output_tokens    INTEGER NOT NULL,
		reasoning_tokens INTEGER NOT NULL,
		currency         TEXT NOT NULL,
		input_price      INTEGER NOT NULL,
		cached_price     INTEGER NOT NULL,
		output_price     INTEGER NOT NULL,
		input_cost       INTEGER NOT NULL,
		cached_cost      INTEGER NOT NULL,
		output_cost      INTEGER NOT NULL,
		start_ns         INTEGER NOT NULL,
		end_ns           INTEGER NOT NULL,
		queue_ns         INTEGER NOT NULL,
		ttft_ns          INTEGER NOT NULL,
		duration_ns      INTEGER NOT NULL
	) STRICT;
CREATE INDEX requests_by_end ON requests (end_ns);
CREATE TABLE archived_months (
		month_ns    INTEGER PRIMARY KEY,
		file        TEXT NOT NULL,
		row_count   INTEGER NOT NULL,
		sha256      TEXT NOT NULL,
		archived_ns INTEGER NOT NULL
	) STRICT;
INSERT INTO migrations (version, applied_ns) VALUES (1, 1796046154353626027);
INSERT INTO migrations (version, applied_ns) VALUES (2, 1796046154378410997);
INSERT INTO requests (seq, id, request_id, decision_id, policy_revision, policy_rule, tenant, team, principal, key_id, operation, dialect, model, requested_model, pool, worker, class, labels, status, error_code, outcome, phase, flags, attempts, input_tokens, cached_tokens, output_tokens, reasoning_tokens, currency, input_price, cached_price, output_price, input_cost, cached_cost, output_cost, start_ns, end_ns, queue_ns, ttft_ns, duration_ns) VALUES (1, 'full', 'client''s own', 'd1', 'sha256:1', 'p/r', 'acme', 'search', 'key:k1', 'k1', 'chat', 'openai', 'qwen', 'qwen-alias', 'a', 'w1', 'batch', 'pii,restricted', 200, 'none', 'completed', 'done', 65, 2, 900, 600, 250, 50, 'USD', 150000, 15000, 600000, 45, 9, 150, 1773144000123456789, 1773144004123456789, 3000000, 90000000, 4000000000);
INSERT INTO requests (seq, id, request_id, decision_id, policy_revision, policy_rule, tenant, team, principal, key_id, operation, dialect, model, requested_model, pool, worker, class, labels, status, error_code, outcome, phase, flags, attempts, input_tokens, cached_tokens, output_tokens, reasoning_tokens, currency, input_price, cached_price, output_price, input_cost, cached_cost, output_cost, start_ns, end_ns, queue_ns, ttft_ns, duration_ns) VALUES (2, 'euro', 'client''s own', 'd1', 'sha256:1', 'p/r', 'acme', 'search', 'key:k1', 'k1', 'chat', 'openai', 'qwen', 'qwen-alias', 'a', 'w1', 'batch', 'pii,restricted', 200, 'none', 'completed', 'done', 65, 2, 900, 600, 250, 50, 'EUR', 150000, 15000, 600000, 45, 9, 150, 1773144000123456789, 1773144004123456789, 3000000, 90000000, 4000000000);
INSERT INTO requests (seq, id, request_id, decision_id, policy_revision, policy_rule, tenant, team, principal, key_id, operation, dialect, model, requested_model, pool, worker, class, labels, status, error_code, outcome, phase, flags, attempts, input_tokens, cached_tokens, output_tokens, reasoning_tokens, currency, input_price, cached_price, output_price, input_cost, cached_cost, output_cost, start_ns, end_ns, queue_ns, ttft_ns, duration_ns) VALUES (3, 'denied', '', '', '', '', 'acme', '', '', '', '', '', '', '', '', '', '', '', 403, '', 'denied', 'read', 0, 0, 0, 0, 0, 0, '', 0, 0, 0, 0, 0, 0, 1773140400123456789, 1773140400123456789, 0, 0, 0);
INSERT INTO requests (seq, id, request_id, decision_id, policy_revision, policy_rule, tenant, team, principal, key_id, operation, dialect, model, requested_model, pool, worker, class, labels, status, error_code, outcome, phase, flags, attempts, input_tokens, cached_tokens, output_tokens, reasoning_tokens, currency, input_price, cached_price, output_price, input_cost, cached_cost, output_cost, start_ns, end_ns, queue_ns, ttft_ns, duration_ns) VALUES (4, 'edge', 'client''s own', 'd1', 'sha256:1', 'p/r', 'acme', 'search', 'key:k1', 'k1', 'chat', 'openai', 'qwen', 'qwen-alias', 'a', 'w1', 'batch', 'pii,restricted', 200, 'none', 'completed', 'done', 65, 2, 900, 600, 250, 50, 'USD', 150000, 15000, 600000, 45, 9, 150, 1772323199000000000, 1772323200000000000, 3000000, 90000000, 1000000000);
INSERT INTO requests (seq, id, request_id, decision_id, policy_revision, policy_rule, tenant, team, principal, key_id, operation, dialect, model, requested_model, pool, worker, class, labels, status, error_code, outcome, phase, flags, attempts, input_tokens, cached_tokens, output_tokens, reasoning_tokens, currency, input_price, cached_price, output_price, input_cost, cached_cost, output_cost, start_ns, end_ns, queue_ns, ttft_ns, duration_ns) VALUES (5, 'lost', 'r', 'd', 'sha256:1', '', 'acme', 'search', 'key:k1', 'k1', 'chat', 'openai', 'qwen', 'q', 'a', '', 'batch', '', 0, '', 'lost', 'prefill', 96, 0, 0, 0, 0, 0, '', 0, 0, 0, 0, 0, 0, 1773144000123456789, 1773144000123456789, 0, 0, 0);
