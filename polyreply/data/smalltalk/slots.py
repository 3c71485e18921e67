"""Slots that lines of any topic may use: people, places and times.

A topic's own slots (its dishes, its instruments) stand beside its lines. `{name}`, `{kin}` and `{friend}`
give the reply its `{who}`. `{often}` (days) and `{hour}` (times of day) are times of habit, `{day}` and
`{season}` times of a plan; all four give the reply its `{when}`.
"""

from collections.abc import Mapping

from polyreply.data.smalltalk.topic import Slot

SHARED: Mapping[str, Slot] = {
    "name": Slot(
        train="""Anna, Ben, Clara, Daniel, Elena, Felix, Grace, Henry, Ines, Jack, Karim, Laura, Maria,
            Nina, Oscar, Paula, Rosa, Samir, Tara, Umar, Vera, Wendy, Yusuf, Zoe, Alice, Bruno, Carmen,
            David, Emma, Farid, Gloria, Hugo, Irene, Jonas, Katie, Leo, Mei, Noah, Olga, Peter, Rachel,
            Simon, Teresa, Victor, Amira, Boris, Chloe, Dmitri, Esther, Fiona""",
        valid="""Agnes, Bilal, Cecilia, Dylan, Edith, Frank, Greta, Hassan, Ivan, Julia, Kofi, Lena, Marcus,
            Naomi, Otto, Priya""",
        test="""Adele, Bernard, Colette, Diego, Erik, Flora, George, Helen, Isaac, Joanna, Keiko, Liam,
            Miriam, Nadia, Owen, Petra""",
    ),
    "kin": Slot(
        train="""sister, brother, mother, father, aunt, uncle, cousin, daughter, son, grandmother,
            mother-in-law, brother-in-law, youngest sister, eldest brother""",
        valid="niece, grandfather, stepbrother, oldest cousin",
        test="nephew, father-in-law, stepsister, favourite aunt",
    ),
    "friend": Slot(
        train="""neighbour, flatmate, boss, best friend, landlady, teacher, old classmate, hairdresser, team
            leader, colleague, former boss, piano teacher, next-door neighbour, new colleague""",
        valid="roommate, coach, oldest friend, workmate",
        test="landlord, singing teacher, childhood friend, lodger",
    ),
    "place": Slot(
        train="""Leeds, Bristol, Dublin, Glasgow, Lisbon, Madrid, Valencia, Lyon, Turin, Naples, Vienna,
            Prague, Krakow, Berlin, Hamburg, Cologne, Oslo, Bergen, Stockholm, Helsinki, Athens, Istanbul,
            Cairo, Nairobi, Lagos, Mumbai, Delhi, Seoul, Osaka, Kyoto, Sydney, Auckland, Toronto, Montreal,
            Boston, Chicago, Denver, Lima, Santiago, Cape Town""",
        valid="""Cardiff, Porto, Munich, Ghent, Gothenburg, Budapest, Tunis, Taipei, Perth, Ottawa, Seattle,
            Quito""",
        test="""Belfast, Seville, Dresden, Utrecht, Aarhus, Zagreb, Rabat, Hanoi, Adelaide, Halifax,
            Portland, Bogota""",
    ),
    "often": Slot(
        train="""at weekends, on Sundays, on Saturdays, on Friday evenings, on Saturday mornings, on Sunday
            afternoons, most weekends, on public holidays, on days off""",
        valid="on Tuesdays, on Wednesday mornings, on weekday afternoons, on Monday nights",
        test="on Thursdays, on Monday mornings, on Thursday evenings, on Tuesday mornings",
    ),
    "hour": Slot(
        train="""before breakfast, after work, in the evenings, late at night, first thing in the morning,
            at the crack of dawn, after dinner, before work, on Friday nights""",
        valid="before lunch, before dinner, straight after breakfast, in the afternoons",
        test="after lunch, well before sunrise, at dusk, late in the evening",
    ),
    "day": Slot(
        train="""on Saturday, this weekend, tomorrow evening, on Friday, next weekend, on Sunday afternoon,
            next Saturday, on Friday night, on Sunday""",
        valid="on Wednesday, on Tuesday evening, the day after tomorrow, next Wednesday",
        test="on Thursday, on Monday night, next Thursday, a week from now",
    ),
    "season": Slot(
        train="""next month, this summer, in March, over Easter, in the autumn, at the end of the year, next
            year, in May, in September""",
        valid="this winter, in October, in February, around New Year",
        test="next spring, in August, in November, in June",
    ),
}
