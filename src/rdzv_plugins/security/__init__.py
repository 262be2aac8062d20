"""Who may join a job: its token, proved and never sent, and certificates made for it."""
