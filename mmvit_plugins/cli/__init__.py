"""The command-line tools. ``tools/<name>.py`` and the console commands ``mmvit-<name>`` both call ``main`` in here."""
