-- The tables of a memory file. Section k takes a file from version k to k + 1; a blank line ends each statement.
-- Never edit a section that was released: append another.

-- version 0
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID

INSERT INTO meta VALUES ('sequence', 0)

CREATE TABLE tips (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    text TEXT NOT NULL,
    key TEXT NOT NULL,
    score REAL NOT NULL,
    max_score REAL NOT NULL,
    action TEXT NOT NULL,
    support INTEGER NOT NULL,
    step INTEGER NOT NULL,
    model TEXT NOT NULL,
    version INTEGER NOT NULL,
    run TEXT NOT NULL,
    created TEXT NOT NULL,
    imported INTEGER NOT NULL,
    enabled INTEGER NOT NULL,
    vector BLOB NOT NULL,
    age INTEGER NOT NULL
)

CREATE INDEX tips_by_text ON tips (namespace, text)

CREATE INDEX tips_by_age ON tips (namespace, age)

-- version 1
CREATE TABLE experience (
    id INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    observation TEXT NOT NULL,
    history TEXT NOT NULL,
    admissible TEXT NOT NULL,
    last_reward REAL NOT NULL,
    total_reward REAL NOT NULL,
    visits INTEGER NOT NULL,
    age INTEGER NOT NULL,
    vectors BLOB NOT NULL,
    UNIQUE (task, observation)
)

CREATE TABLE experience_values (
    record INTEGER NOT NULL,
    action TEXT NOT NULL,
    reward REAL NOT NULL,
    q REAL NOT NULL,
    number INTEGER NOT NULL,
    other_q REAL NOT NULL,
    other_number INTEGER NOT NULL,
    PRIMARY KEY (record, action)
) WITHOUT ROWID

-- version 2
-- What the owner did by hand: the fields set, as JSON; all of them where the tip is new; NULL where it went.
CREATE TABLE owner_changes (number INTEGER PRIMARY KEY, tip INTEGER NOT NULL, fields TEXT)

-- Copies of a file share its lineage, so that another file put in its place is recognised.
INSERT INTO meta VALUES ('lineage', lower(hex(randomblob(8))))

-- version 3
-- Episodes that were shown the tip, and what they earned together, each 0 to 1.
ALTER TABLE tips ADD COLUMN shown INTEGER NOT NULL DEFAULT 0

ALTER TABLE tips ADD COLUMN earned REAL NOT NULL DEFAULT 0

-- version 4
-- The registered tasks, for searches beyond one of them; a task under two splits has two rows.
CREATE TABLE tasks (
    namespace TEXT NOT NULL,
    split TEXT NOT NULL,
    env TEXT NOT NULL,
    family TEXT NOT NULL,
    game TEXT NOT NULL,
    PRIMARY KEY (namespace, split)
) WITHOUT ROWID

CREATE INDEX tasks_by_game ON tasks (game)

-- version 5
-- Readers that members of their group without the tip are compared with, what they gained, and their last write.
ALTER TABLE tips ADD COLUMN compared INTEGER NOT NULL DEFAULT 0

ALTER TABLE tips ADD COLUMN gained REAL NOT NULL DEFAULT 0

ALTER TABLE tips ADD COLUMN used INTEGER NOT NULL DEFAULT 0

-- version 6
-- The number of enabled tips of a namespace, kept because every write and every search asks for it.
CREATE TABLE sizes (namespace TEXT PRIMARY KEY, enabled INTEGER NOT NULL) WITHOUT ROWID

INSERT INTO sizes SELECT namespace, SUM(enabled) FROM tips GROUP BY namespace

CREATE TRIGGER tip_inserted AFTER INSERT ON tips BEGIN
    INSERT INTO sizes VALUES (NEW.namespace, NEW.enabled)
        ON CONFLICT DO UPDATE SET enabled = enabled + NEW.enabled;
END

CREATE TRIGGER tip_updated AFTER UPDATE OF namespace, enabled ON tips
WHEN OLD.namespace <> NEW.namespace OR OLD.enabled <> NEW.enabled BEGIN
    UPDATE sizes SET enabled = enabled - OLD.enabled WHERE namespace = OLD.namespace;
    INSERT INTO sizes VALUES (NEW.namespace, NEW.enabled)
        ON CONFLICT DO UPDATE SET enabled = enabled + NEW.enabled;
END

CREATE TRIGGER tip_deleted AFTER DELETE ON tips BEGIN
    UPDATE sizes SET enabled = enabled - OLD.enabled WHERE namespace = OLD.namespace;
END

-- What was written since a moment, and whether all rows have been exchanged since.
CREATE INDEX tips_by_write ON tips (age)

INSERT OR REPLACE INTO meta VALUES ('era', lower(hex(randomblob(8))))

-- version 7
-- Which rule retired a tip ('' = none), at which write, when and by what; and the tip that it was merged into.
ALTER TABLE tips ADD COLUMN retired TEXT NOT NULL DEFAULT ''

ALTER TABLE tips ADD COLUMN retired_at INTEGER NOT NULL DEFAULT 0

ALTER TABLE tips ADD COLUMN retired_on TEXT NOT NULL DEFAULT ''

ALTER TABLE tips ADD COLUMN retired_by TEXT NOT NULL DEFAULT ''

ALTER TABLE tips ADD COLUMN merged_into INTEGER NOT NULL DEFAULT 0

-- Readers whose actions were scored without tips, too, and how much likelier tips made these: a running mean.
ALTER TABLE tips ADD COLUMN measured INTEGER NOT NULL DEFAULT 0

ALTER TABLE tips ADD COLUMN lead REAL NOT NULL DEFAULT 0

-- Eviction takes the first rows of the first two indexes; the third serves counts without retired tips.
CREATE INDEX tips_by_use ON tips (namespace, shown, age) WHERE enabled

CREATE INDEX tips_by_worth ON tips (namespace, gained / (4.0 + compared), age) WHERE enabled

CREATE INDEX tips_by_retirement ON tips (retired_at) WHERE retired_at > 0

-- version 8
-- Attempts outside our loop: the tips that they were shown (ids in JSON), and what they earned once they have reported.
CREATE TABLE attempts (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, namespace TEXT NOT NULL, tips TEXT NOT NULL, earned REAL
)

CREATE INDEX attempts_by_task ON attempts (namespace, number) WHERE earned IS NOT NULL

-- Values that a program keeps under keys of its own (memory/langgraph.py), and the tip that finds each; times in seconds.
CREATE TABLE items (
    namespace TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, tip INTEGER, created REAL NOT NULL,
    updated REAL NOT NULL, PRIMARY KEY (namespace, key)
)

-- version 9
-- This step decoded numbers that earlier commits stored as numpy bytes. No release wrote such a file.
