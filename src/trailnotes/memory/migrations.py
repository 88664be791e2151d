"""The tables of a memory file, from version to version."""

from __future__ import annotations

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
)
