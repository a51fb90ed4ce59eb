"""From prices and acceptance to decisions: goodput, plans, schedules, width against depth, money."""
