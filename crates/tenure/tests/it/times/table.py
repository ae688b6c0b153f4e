#!/usr/bin/env python3
"""The next five runs of cron lines in time zones, by croniter and zoneinfo: the table that tenure is compared with.

    python3 -m venv venv && venv/bin/pip install croniter==7.0.0 tzdata==2026.6 && venv/bin/python table.py > table.tsv

Nothing here is shared with tenure or with croner. croniter only says which times a wall clock without a zone may name. What a
zone makes of them is found by walking through time second by second, or minute by minute, and asking zoneinfo what the clock
shows. The policies are those of the docs: a line that names hours makes up for a time that is left out at the first instant
behind the gap, and runs once, the first time, where the clock shows a time twice; a line whose hour field begins with * follows
the clock.
"""

import sys
from datetime import date, datetime, time, timedelta, timezone
from functools import cache
from zoneinfo import ZoneInfo

from croniter import croniter

UTC = timezone.utc

# Line, zone, the instant after which the runs are wanted, what is shown by it.
CASES = [
    ("30 2 * * *", "America/Chicago", "2024-03-09T08:00:00Z", "daily in the hour that is left out"),
    ("0 2 * * *", "America/Chicago", "2024-03-09T08:30:00Z", "daily at the begin of it"),
    ("0 3 * * *", "America/Chicago", "2024-03-09T08:30:00Z", "daily at its end"),
    ("*/15 * * * *", "America/Chicago", "2024-03-10T07:20:00Z", "quarters go on"),
    ("30 1 * * *", "America/Chicago", "2024-11-02T06:00:00Z", "daily in the hour that comes twice"),
    ("30 1 * * *", "America/Chicago", "2024-11-03T07:00:00Z", "after the first, before the second of them"),
    ("0 * * * *", "America/Chicago", "2024-11-03T05:30:00Z", "hours go on"),
    ("*/30 * * * *", "Australia/Melbourne", "2024-04-06T14:45:00Z", "half hours go on"),
    ("0,15,30,45 6-22 * * *", "Europe/Brussels", "2023-10-28T20:40:00Z", "next and previous agree"),
    ("20 */4 * * *", "America/Los_Angeles", "2023-03-12T00:00:00Z", "every fourth hour over the gap"),
    ("30 2 * * *", "Europe/Berlin", "2027-03-26T12:00:00Z", "gap"),
    ("30 2,3 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", "both hours of the gap's day run"),
    ("30 2 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", "overlap"),
    ("*/20 2 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", "three times in the gap are one run"),
    ("*/20 2 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", "three times in the overlap"),
    ("0 */2 * * *", "Europe/Berlin", "2027-10-30T21:00:00Z", "every second hour over the overlap"),
    ("30 1 * * *", "Europe/London", "2026-03-28T12:00:00Z", "gap"),
    ("30 1 * * *", "Europe/London", "2026-10-24T12:00:00Z", "overlap"),
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-02T12:00:00Z", "a gap of half an hour"),
    ("45 1 * * *", "Australia/Lord_Howe", "2026-04-03T12:00:00Z", "an overlap of half an hour"),
    ("*/15 * * * *", "Australia/Lord_Howe", "2026-04-04T14:40:00Z", "quarters over it"),
    ("0 0 * * *", "Africa/Cairo", "2026-04-21T12:00:00Z", "midnight is left out"),
    ("30 23 * * *", "Africa/Cairo", "2026-10-28T12:00:00Z", "the hour before midnight comes twice"),
    ("0 0 * * *", "America/Sao_Paulo", "2018-11-02T12:00:00Z", "midnight is left out"),
    ("30 23 * * *", "America/Sao_Paulo", "2018-02-16T12:00:00Z", "the hour before midnight comes twice"),
    ("0 0 * * *", "Asia/Beirut", "2026-03-27T12:00:00Z", "midnight is left out"),
    ("0 0 * * *", "America/Havana", "2026-03-06T12:00:00Z", "midnight is left out"),
    ("30 0 * * *", "America/Havana", "2026-10-30T12:00:00Z", "the hour after midnight comes twice"),
    ("0 0 * * *", "America/Asuncion", "2023-09-29T12:00:00Z", "midnight is left out"),
    ("15 2 * * *", "Antarctica/Troll", "2026-03-27T12:00:00Z", "a gap of two hours"),
    ("30 2 * * *", "Antarctica/Troll", "2026-10-23T12:00:00Z", "an overlap of two hours"),
    ("30 2 * * *", "Pacific/Apia", "2011-12-28T15:00:00Z", "a day is left out"),
    ("0 12 * * *", "Pacific/Apia", "2011-12-28T15:00:00Z", "a day is left out"),
    ("0 9 30 * *", "Pacific/Apia", "2011-11-15T00:00:00Z", "the day of the month that is left out"),
    ("30 2 * * *", "America/New_York", "2026-03-06T12:00:00Z", "gap"),
    ("30 1 * * *", "America/New_York", "2026-10-30T12:00:00Z", "overlap"),
    ("30 2 * * *", "America/St_Johns", "2026-03-06T12:00:00Z", "gap, at an offset of half an hour"),
    ("1 0 * * *", "America/St_Johns", "2006-10-27T12:00:00Z", "the clock is put back at one minute past midnight"),
    ("30 2 * * *", "Pacific/Auckland", "2026-09-25T12:00:00Z", "gap in the south"),
    ("45 2 * * *", "Pacific/Chatham", "2026-09-25T12:00:00Z", "gap at 02:45"),
    ("0 3 * * *", "Asia/Kathmandu", "2026-01-01T00:00:00Z", "an offset of 5:45, no changes"),
    ("0 12 * * *", "Asia/Kolkata", "2026-01-01T00:00:00Z", "an offset of 5:30"),
    ("30 2 * * *", "Africa/Casablanca", "2026-02-13T12:00:00Z", "an overlap before Ramadan"),
    ("30 2 * * *", "Africa/Casablanca", "2026-03-20T12:00:00Z", "a gap after it"),
    ("0 0 1 * *", "UTC", "2026-01-01T00:00:00Z", "months"),
    ("0 0 29 2 *", "UTC", "2025-01-01T00:00:00Z", "leap days"),
    ("0 0 31 * *", "Europe/Paris", "2026-01-01T00:00:00Z", "months of 31 days"),
    ("0 9 1 * 1", "UTC", "2025-01-01T00:00:00Z", "both day fields: either"),
    ("0 0 13 * FRI", "America/New_York", "2026-01-01T00:00:00Z", "both day fields: either"),
    ("0 9 */2 * 1", "UTC", "2025-01-01T00:00:00Z", "a star with a step: both"),
    ("0 9 1-7 * MON", "UTC", "2025-01-01T00:00:00Z", "a range of days: either"),
    ("0 9 * * 5-7", "Europe/Berlin", "2025-01-01T00:00:00Z", "Friday to Sunday"),
    ("0 9 * * 7", "UTC", "2025-01-01T00:00:00Z", "Sunday is 7"),
    ("0 22 * JAN,jul SUN", "Asia/Tokyo", "2026-01-01T00:00:00Z", "names in any case"),
    ("0 0 L * *", "Europe/Berlin", "2026-01-15T00:00:00Z", "the last day"),
    ("0 9 * * MON#2", "America/New_York", "2026-02-10T00:00:00Z", "the second Monday"),
    ("0 18 * * 5L", "Europe/Berlin", "2026-01-01T00:00:00Z", "the last Friday"),
    ("0 9 15W * *", "Europe/Berlin", "2026-01-20T00:00:00Z", "the weekday nearest to the 15th"),
    ("0 9 LW * *", "Europe/Berlin", "2026-01-20T00:00:00Z", "the last weekday"),
    ("*/10 * * * * *", "Europe/Berlin", "2027-10-31T00:59:45Z", "seconds over the overlap"),
    ("30 0 2 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", "seconds, in the gap"),
    ("5-59/20 8-18/5 * 1-12/3 *", "America/New_York", "2026-03-31T20:00:00Z", "steps over ranges"),
]


class Line:
    """Which wall times a line names, said by croniter or, for what it does not know, by the calendar."""

    def __init__(self, text):
        fields = text.split()
        self.second, self.rest = ("0", fields) if len(fields) == 5 else (fields[0], fields[1:])
        self.minute, self.hour, self.day, self.month, self.weekday = self.rest
        self.seconds = set(croniter("* * * * * " + self.second, datetime(2000, 1, 1)).expanded[5])
        if self.seconds == {"*"}:
            self.seconds = set(range(60))

    def names_hours(self):
        return not self.hour.startswith("*")

    def has(self, wall):
        """Does it name this wall time?"""
        return self.has_time(wall.time()) and self.has_day(wall.date())

    @cache
    def has_time(self, at):
        return at.second in self.seconds and self.matches([self.minute, self.hour, "*", "*", "*"], datetime.combine(date(2000, 1, 1), at))

    @cache
    def has_day(self, day):
        wall = datetime.combine(day, time())
        if not self.matches(["*", "*", "*", self.month, "*"], wall):
            return False
        special = {"L": last_day, "LW": last_weekday, "15W": near_15}
        if self.day in special:
            return special[self.day](wall)
        if self.weekday.endswith("L"):
            return wall.isoweekday() == int(self.weekday[:-1]) and (wall + timedelta(days=7)).month != wall.month
        # Vixie cron's rule: either field is enough, unless one of them begins with a star.
        either = not self.day.startswith("*") and not self.weekday.startswith("*")
        return croniter.match(" ".join(["*", "*", self.day, "*", self.weekday]), wall, day_or=either)

    @staticmethod
    def matches(fields, wall):
        return croniter.match(" ".join(fields), wall.replace(second=0))


def last_day(wall):
    return (wall + timedelta(days=1)).month != wall.month


def last_weekday(wall):
    if wall.isoweekday() > 5:
        return False
    day = wall + timedelta(days=1)
    while day.month == wall.month:
        if day.isoweekday() <= 5:
            return False
        day += timedelta(days=1)
    return True


def near_15(wall):
    shift = {6: -1, 7: 1}.get(wall.replace(day=15).isoweekday(), 0)
    return wall.day == 15 + shift


def shown(instant, zone):
    """What the clock of the zone shows."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def runs(text, zone_name, after, count=5):
    line, zone = Line(text), ZoneInfo(zone_name)
    step = timedelta(seconds=1) if line.seconds != {0} else timedelta(minutes=1)
    instant, found = after, []
    # A day that is of no interest is passed over at once: its wall times, and those two days around it, are not named.
    before = shown(instant, zone)
    seen = latest_before(instant, zone)
    while len(found) < count:
        instant += step
        wall = shown(instant, zone)
        jump = wall - before - step
        runs_now = False
        if jump > timedelta(0) and line.names_hours():
            # Wall times were left out: does the line name one of them?
            left_out = before + step
            while left_out < wall and not runs_now:
                runs_now = line.has(left_out) and left_out > seen
                left_out += step
        again = line.names_hours() and wall <= seen
        if not again and not runs_now:
            runs_now = line.has(wall)
        if runs_now:
            found.append(instant)
        before, seen = wall, max(seen, wall)
        if not any(line.has_day(wall.date() + timedelta(days=days)) for days in (-2, -1, 0, 1, 2)):
            instant += timedelta(days=1) - step
            before = shown(instant, zone)
            seen = max(seen, before)
    return found


def latest_before(instant, zone):
    """The latest wall time that was shown up to this instant: what comes again was shown before."""
    return max(shown(instant - timedelta(minutes=minutes), zone) for minutes in range(0, 60 * 27))


def main():
    print("# Made by table.py; line, zone, after, the next five runs, what is shown. Separated by tabs.")
    for text, zone, after, what in CASES:
        start = datetime.fromisoformat(after.replace("Z", "+00:00"))
        times = [at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for at in runs(text, zone, start)]
        print("\t".join([text, zone, after, " ".join(times), what]), flush=True)
        print(text, zone, file=sys.stderr)


if __name__ == "__main__":
    main()
