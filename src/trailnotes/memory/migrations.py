"""The tables of a memory file, from version to version."""

from __future__ import annotations

WRONG_SIZES = """
    SELECT 1 FROM sizes LEFT JOIN (SELECT namespace, SUM(enabled) AS counted FROM tips GROUP BY namespace)
    USING (namespace) WHERE enabled IS NOT COALESCE(counted, 0) LIMIT 1
"""
COUNT_SIZES = "INSERT INTO sizes SELECT namespace, SUM(enabled) FROM tips GROUP BY namespace"
WORTH_SQL = (
    "gained / (4.0 + compared)"  # `worth.shrunk_gain`; an index holds it, so another prior is another migration
)
NEW_ERA = "INSERT OR REPLACE INTO meta VALUES ('era', lower(hex(randomblob(8))))"

# Migration k takes a file from version k to k + 1. Never edit one that was released: append another.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('sequence', 0)",
        """
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
        """,
        "CREATE INDEX tips_by_text ON tips (namespace, text)",
        "CREATE INDEX tips_by_age ON tips (namespace, age)",
    ),
    (
        """
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
        """,
        """
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
        """,
    ),
    (
        # What the owner did by hand: the fields set, as JSON; all of them where the tip is new; NULL where it went.
        "CREATE TABLE owner_changes (number INTEGER PRIMARY KEY, tip INTEGER NOT NULL, fields TEXT)",
        # Copies of a file share its lineage, so that a file that somebody put in its place is known.
        "INSERT INTO meta VALUES ('lineage', lower(hex(randomblob(8))))",
    ),
    (  # episodes that were shown the tip, and what they earned together, each 0 to 1
        "ALTER TABLE tips ADD COLUMN shown INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tips ADD COLUMN earned REAL NOT NULL DEFAULT 0",
    ),
    (  # the tasks that were met, for searches beyond one of them; one under two splits has two rows
        """
        CREATE TABLE tasks (
            namespace TEXT NOT NULL,
            split TEXT NOT NULL,
            env TEXT NOT NULL,
            family TEXT NOT NULL,
            game TEXT NOT NULL,
            PRIMARY KEY (namespace, split)
        ) WITHOUT ROWID
        """,
        "CREATE INDEX tasks_by_game ON tasks (game)",
    ),
    (  # readers that members of their group without the tip are compared with, what they gained, and their last write
        "ALTER TABLE tips ADD COLUMN compared INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tips ADD COLUMN gained REAL NOT NULL DEFAULT 0",
        "ALTER TABLE tips ADD COLUMN used INTEGER NOT NULL DEFAULT 0",
    ),
    (
        # How many enabled tips a namespace has, told without counting: a write asks, and so does a search.
        "CREATE TABLE sizes (namespace TEXT PRIMARY KEY, enabled INTEGER NOT NULL) WITHOUT ROWID",
        COUNT_SIZES,
        """
        CREATE TRIGGER tip_inserted AFTER INSERT ON tips BEGIN
            INSERT INTO sizes VALUES (NEW.namespace, NEW.enabled)
                ON CONFLICT DO UPDATE SET enabled = enabled + NEW.enabled;
        END
        """,
        """
        CREATE TRIGGER tip_updated AFTER UPDATE OF namespace, enabled ON tips
        WHEN OLD.namespace <> NEW.namespace OR OLD.enabled <> NEW.enabled BEGIN
            UPDATE sizes SET enabled = enabled - OLD.enabled WHERE namespace = OLD.namespace;
            INSERT INTO sizes VALUES (NEW.namespace, NEW.enabled)
                ON CONFLICT DO UPDATE SET enabled = enabled + NEW.enabled;
        END
        """,
        """
        CREATE TRIGGER tip_deleted AFTER DELETE ON tips BEGIN
            UPDATE sizes SET enabled = enabled - OLD.enabled WHERE namespace = OLD.namespace;
        END
        """,
        # What was written since a moment, and whether all rows have been exchanged since: for an index beside the file.
        "CREATE INDEX tips_by_write ON tips (age)",
        NEW_ERA,
    ),
    (
        # Which rule has ended the search for a tip ('' = none: every enabled one), at which write, when and by what;
        # and the tip that it became one with. Nothing is deleted.
        "ALTER TABLE tips ADD COLUMN retired TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE tips ADD COLUMN retired_at INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tips ADD COLUMN retired_on TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE tips ADD COLUMN retired_by TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE tips ADD COLUMN merged_into INTEGER NOT NULL DEFAULT 0",
        # Readers whose actions were scored without tips, too, and how much likelier tips made these: a running mean.
        "ALTER TABLE tips ADD COLUMN measured INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tips ADD COLUMN lead REAL NOT NULL DEFAULT 0",
        # Who goes first, without a look at the rest; what went since a moment, for an index beside the file.
        "CREATE INDEX tips_by_use ON tips (namespace, shown, age) WHERE enabled",
        f"CREATE INDEX tips_by_worth ON tips (namespace, {WORTH_SQL}, age) WHERE enabled",
        "CREATE INDEX tips_by_retirement ON tips (retired_at) WHERE retired_at > 0",
    ),
)
