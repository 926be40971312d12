"""What differs between rows, bags and groups; see :class:`~moreauc.tasks.base.Task`."""
