"""Topics of the open air: weather, sport, travel, transport, nature."""

from polyreply.data.smalltalk.topic import Slot, Topic

OUT = (
    Topic(
        name="weather",
        doing="walking in the {weather}",
        thing="the long walks in the {weather}",
        slots={
            "weather": Slot(
                train="rain, snow, fog, wind, drizzle, sea fog, frost, mist, slush, spring showers",
                valid="sleet, gale, east wind",
                test="hail, salty air, sea breeze",
            )
        },
        train=(
            "Another day of {weather} in {place}, and here I am, walking in it again.",
            "I walk in the {weather} {hour}, just me and my thoughts.",
            "{name} and I were out walking in the {weather} today, and we'll do it again {day}.",
            "They say there'll be {weather} again {day}, but I'm going for my walk all the same.",
        ),
        valid=("You can see {name} and me walking in the {weather} {hour}, with our collars turned up.",),
        test=("Whatever the forecast for {place} says, I walk in the {weather} {hour}.",),
    ),
    Topic(
        name="sport",
        doing="playing {sport}",
        thing="the {sport} practice",
        slots={
            "sport": Slot(
                train="""tennis, badminton, squash, football, volleyball, hockey, table tennis, basketball,
                    rugby, golf""",
                valid="cricket, handball, water polo",
                test="softball, lacrosse, bowls",
            )
        },
        train=(
            "I've joined a {sport} club in {place}, and we play {often}.",
            "{name} and I play {sport} {often}, though neither of us keeps score.",
            "My knees are complaining, but I'm playing {sport} again {day}.",
            "At my age I've taken up {sport}, to the surprise of my {kin}.",
        ),
        valid=("We were one player short, so {name} has me playing {sport} {often}.",),
        test=("There's a place for me in the {sport} team, and {name} wants me to play {day}.",),
    ),
    Topic(
        name="running",
        doing="training for a {race}",
        thing="the {race}",
        slots={
            "race": Slot(
                train="marathon, half marathon, triathlon, charity run, hill race, city run, relay race",
                valid="night run, desert race, ten-mile race",
                test="beach run, mud race, cross-country race",
            )
        },
        train=(
            "I'm training for the {race} in {place}, so I run {hour}.",
            "My {friend} has put my name down for a {race} {season}, so I'd better train.",
            "I went and told {name} that I'd train for a {race}.",
            "Training for the {race} means getting up early, and my {kin} thinks it's funny.",
        ),
        valid=("Seven more weeks until the {race} in {place}, and I'm out training with {name} {hour}.",),
        test=("{name} and I train for the {race} {hour}, rain or shine.",),
    ),
    Topic(
        name="cycling",
        doing="cycling {route}",
        thing="the long bike rides",
        slots={
            "route": Slot(
                train="""to the castle, along the river, up steep hills, through the forest, along the canal,
                    round the lake, through the old town, over the moors""",
                valid="along the coast, across the fens, to the market",
                test="through the vineyards, over the big bridge, from village to village",
            )
        },
        train=(
            "My car is sold, and I've been cycling {route} {often}.",
            "Here in {place} I go cycling {route} with my {friend}.",
            "I'm going to try cycling {route} {day}, if {name} lends me a bike.",
            "Cycling {route} {often} has become a habit of mine.",
        ),
        valid=("{name} got me a helmet, so now I'm cycling {route} {often}.",),
        test=("What I do for exercise is cycling {route} {often}, and {name} comes along.",),
    ),
    Topic(
        name="hiking",
        doing="hiking in the {range}",
        thing="the hikes in the {range}",
        slots={
            "range": Slot(
                train="hills, dunes, mountains, woods, marshes, national park, valleys, highlands",
                valid="gorges, canyons, nature reserve",
                test="heathland, foothills, backcountry",
            )
        },
        train=(
            "I've bought proper boots, because I'm going hiking in the {range} {day}.",
            "{name} and I go hiking in the {range} {often}.",
            "Every few weeks my {friend} drags me out of {place} to go hiking in the {range}.",
            "My feet are sore from hiking in the {range}, and {day} we're going again.",
        ),
        valid=("The map is on the table, since {name} and I will be hiking in the {range} {day}.",),
        test=("You'll find me hiking in the {range} with {name} {day}, map in hand.",),
    ),
    Topic(
        name="swimming",
        doing="swimming in the {water}",
        thing="the swims in the {water}",
        slots={
            "water": Slot(
                train="lake, river, sea, outdoor pool, village pond, harbour, old quarry, town pool",
                valid="fjord, reservoir, lagoon",
                test="bay, mill stream, hotel pool",
            )
        },
        train=(
            "I swim in the {water} {hour}, even when it's freezing.",
            "My {kin} has persuaded me to go swimming in the {water} {day}.",
            "Now that I'm back in {place}, I've started swimming in the {water} {hour}.",
            "{name} thinks I'm joking, but I'm going swimming in the {water} {day}.",
        ),
        valid=("I'm learning to like swimming in the {water}, which {name} and I do {hour}.",),
        test=("My towel is packed, because {day} I'm swimming in the {water} with {name}.",),
    ),
    Topic(
        name="travel",
        doing="travelling through {country}",
        thing="the trip through {country}",
        slots={
            "country": Slot(
                train="""Portugal, Norway, Mexico, Japan, Morocco, Greece, Canada, Vietnam, Ireland, Peru,
                    Turkey, Kenya""",
                valid="Iceland, Chile, Poland",
                test="Croatia, Bolivia, Scotland",
            )
        },
        train=(
            "I'm travelling through {country} {season}, with nothing but a small rucksack.",
            "{name} and I are saving up so that we can travel through {country}.",
            "After the winter we've had in {place}, I'm thinking of travelling through {country}.",
            "My {kin} wants me to come along and travel through {country} {season}.",
        ),
        valid=("The tickets are booked, and {name} and I will be travelling through {country} {season}.",),
        test=("I have three weeks off {season}, which I'll spend travelling through {country} with {name}.",),
    ),
    Topic(
        name="transport",
        doing="travelling to work by {vehicle}",
        thing="the daily {vehicle} rides",
        slots={
            "vehicle": Slot(
                train="bus, train, ferry, tram, scooter, motorbike, electric bike, night bus",
                valid="cable car, moped, water taxi",
                test="monorail, minibus, kick scooter",
            )
        },
        train=(
            "I've stopped driving and I now travel to work by {vehicle}.",
            "Going to work by {vehicle} in {place} takes me an hour each way.",
            "{name} from the office goes to work by {vehicle}, and {season} I'm going to do the same.",
            "If the car breaks down again, I'll be going to work by {vehicle} like my {friend}.",
        ),
        valid=("Now that the office has moved across {place}, {name} and I go to work by {vehicle}.",),
        test=("In {place} I go to work by {vehicle}, and I meet {name} on the way.",),
    ),
    Topic(
        name="camping",
        doing="camping {spot}",
        thing="the camping trip",
        slots={
            "spot": Slot(
                train="""by the sea, in the mountains, in the woods, on a farm, beside a lake, on an island,
                    in the desert, behind the dunes""",
                valid="near a waterfall, in a meadow, on a cliff",
                test="under the stars, in an orchard, by a glacier",
            )
        },
        train=(
            "We can't afford a hotel, so {name} and I are going camping {spot} {season}.",
            "I've borrowed a tent, and {season} I'm camping {spot}.",
            "My {kin} and I go camping {spot} whenever we can get away from {place}.",
            "I keep thinking about camping {spot} {season}, mosquitoes and all.",
        ),
        valid=("For our holiday {season} we're camping {spot}, which was {name}'s idea.",),
        test=("No beach resort for me {season}, since {name} and I are camping {spot}.",),
    ),
    Topic(
        name="birds",
        doing="feeding {birds}",
        thing="the {birds}",
        slots={
            "birds": Slot(
                train="ducks, robins, pigeons, swans, sparrows, seagulls, finches, peacocks",
                valid="geese, blackbirds, magpies",
                test="crows, wild parrots, starlings",
            )
        },
        train=(
            "I feed {birds} in the park {often}, and they know me by now.",
            "There's a bench in {place} where my {friend} and I sit and feed the {birds}.",
            "{name} gave me a bag of seed, so I've begun feeding the {birds} {often}.",
            "I'm out feeding {birds} {often}, to the amusement of my {kin}.",
        ),
        valid=("Winter is coming, and I've promised {name} to feed the {birds} {often}.",),
        test=("At the pond in {place} I feed the {birds} {often}, sometimes for an hour.",),
    ),
)
