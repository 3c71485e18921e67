"""Topics of looking after oneself and one's things: health, feelings, money, clothes, gadgets, sleep."""

from polyreply.data.smalltalk.topic import Slot, Topic

CARE = (
    Topic(
        name="health",
        doing="cutting down on {food}",
        thing="the new diet",
        slots={
            "food": Slot(
                train="sugar, coffee, salt, chocolate, crisps, red meat, fizzy drinks, butter, sweets",
                valid="cheese, white bread, takeaways",
                test="ice cream, alcohol, fried food",
            )
        },
        train=(
            "I'm cutting down on {food}, mostly because of what my {friend} said.",
            "The shops in {place} make it hard, but I'm cutting down on {food}.",
            "{name} and I have agreed to cut down on {food} {season}.",
            "No more {food} {often} for me, I'm cutting down.",
        ),
        valid=("{name} keeps an eye on me {often}, as I'm trying to cut down on {food}.",),
        test=("I'd like to be fitter {season}, so {name} and I are cutting down on {food}.",),
    ),
    Topic(
        name="fitness",
        doing="doing {exercise}",
        thing="the {exercise}",
        slots={
            "exercise": Slot(
                train="""yoga, push-ups, stretching exercises, weight training, aerobics, squats, balance
                    exercises""",
                valid="pilates, sit-ups, breathing exercises",
                test="tai chi, kettlebell training, back exercises",
            )
        },
        train=(
            "I do {exercise} {hour}, on a mat in front of the window.",
            "My back was stiff, so my {friend} has got me doing {exercise}.",
            "There's a studio in {place} where {name} and I do {exercise}.",
            "I'm starting {exercise} {season}, whatever my {kin} thinks of it.",
        ),
        valid=("With the gym closed {season}, {name} and I are doing {exercise} at home.",),
        test=("To stay in shape I do {exercise} {hour}, and {name} joins in.",),
    ),
    Topic(
        name="feelings",
        doing="talking openly about {feeling}",
        thing="the talks on {feeling}",
        slots={
            "feeling": Slot(
                train="""homesickness, stage fright, boredom, loneliness, stress, shyness, jealousy, nerves,
                    impatience""",
                valid="worry, bad moods, self-doubt",
                test="restlessness, exam nerves, winter blues",
            )
        },
        train=(
            "I've never been good at talking openly about {feeling}, but I'm working on it.",
            "{name} and I sit and talk openly about {feeling} {often}.",
            "Since I came to {place}, I've begun to talk openly about {feeling}.",
            "My {kin} finds it odd that I talk openly about {feeling}.",
            "I've joined a group where we talk openly about {feeling} {often}, like my {friend}.",
        ),
        valid=("There's a circle in {place} where {name} and I talk openly about {feeling}.",),
        test=("It isn't easy, but {often} I talk openly with {name} about {feeling}.",),
    ),
    Topic(
        name="sleep",
        doing="listening to {audio} in bed",
        thing="the {audio} at bedtime",
        slots={
            "audio": Slot(
                train="audiobooks, whale songs, sea stories, podcasts, lullabies, radio plays, soft jazz",
                valid="rain sounds, piano music, forest sounds",
                test="ocean waves, harp music, slow ballads",
            )
        },
        train=(
            "I couldn't fall asleep in {place}, so I started listening to {audio} in bed.",
            "{name} snores, so I listen to {audio} in bed until I drop off.",
            "My {kin} sleeps like a log after listening to {audio} in bed, so I'm trying it too.",
            "I was awake at three again, listening to {audio} in bed while my {kin} slept next door.",
        ),
        valid=("I've tried warm milk, but in {place} it takes {audio} in bed to send {name} and me to sleep.",),
        test=("The flat in {place} is noisy, so {name} and I listen to {audio} in bed.",),
    ),
    Topic(
        name="money",
        doing="saving up for a {goal}",
        thing="the plan to buy a {goal}",
        slots={
            "goal": Slot(
                train="""new sofa, camper van, greenhouse, sailing boat, new roof, washing machine,
                    second-hand car, pony""",
                valid="hot tub, big television, motor home",
                test="grand piano, wood stove, dishwasher",
            )
        },
        train=(
            "{name} laughs at my jar of coins, but I'm saving up for a {goal}.",
            "{name} and I are saving up for a {goal}, so no restaurants for us.",
            "Life in {place} isn't cheap, but I'm saving up for a {goal}.",
            "My {kin} laughed when I said I was saving up for a {goal}.",
            "Like my {friend}, I'm saving up for a {goal}, one coin at a time.",
        ),
        valid=("I take on extra shifts in {place}, since {name} and I are saving up for a {goal}.",),
        test=("No more cinema in {place} for us, because {name} and I are saving up for a {goal}.",),
    ),
    Topic(
        name="shopping",
        doing="shopping for {goods}",
        thing="the hunt for {goods}",
        slots={
            "goods": Slot(
                train="""shoes, curtains, second-hand books, fresh vegetables, presents, carpets,
                    lampshades, party hats""",
                valid="cushions, winter coats, spices",
                test="antiques, sunglasses, tablecloths",
            )
        },
        train=(
            "I'm going to {place} {day}, just to shop for {goods}.",
            "{name} and I go shopping for {goods} {often}, and we come home with far too much.",
            "I've got some time off {day}, so I'll be shopping for {goods}.",
            "My {kin} wants to take me shopping for {goods} {day}.",
        ),
        valid=("The sales begin {day}, so {name} and I will be shopping for {goods}.",),
        test=("I have a list as long as my arm, because {day} {name} and I are shopping for {goods}.",),
    ),
    Topic(
        name="clothes",
        doing="knitting {garment}",
        thing="the {garment}",
        slots={
            "garment": Slot(
                train="scarves, jumpers, mittens, socks, shawls, bobble hats, baby blankets, cardigans",
                valid="ponchos, leg warmers, waistcoats",
                test="gloves, slippers, headbands",
            )
        },
        train=(
            "I knit {garment} {hour}, usually in front of the television.",
            "{name} is cold all the time, so I'm knitting {garment}.",
            "My {friend} and I sell things at a stall in {place}, so I knit {garment} {hour}.",
            "Everybody in the family gets {garment} {season}, and I'm the one who knits them.",
        ),
        valid=("There's wool all over the place, because {name} and I knit {garment} {hour}.",),
        test=("It gets chilly in {place}, so I knit {garment} {hour}.",),
    ),
    Topic(
        name="gadgets",
        doing="tinkering with {gadgets}",
        thing="the {gadgets}",
        slots={
            "gadgets": Slot(
                train="""drones, robots, old computers, spreadsheets, smart speakers, electric motors, home
                    servers""",
                valid="remote controls, sensors, games consoles",
                test="solar panels, digital watches, laser printers",
            )
        },
        train=(
            "I tinker with {gadgets} {hour}, and the kitchen table looks like a laboratory.",
            "{name} came by with a box of parts, and now I'm tinkering with {gadgets}.",
            "My {friend} and I rent a garage in {place} where we tinker with {gadgets}.",
            "Don't tell my {kin}, but I'm tinkering with {gadgets} {hour} instead of working.",
        ),
        valid=("I've cleared the desk, so {day} {name} and I can tinker with {gadgets}.",),
        test=("It began with one screwdriver, and now {name} and I tinker with {gadgets} {hour}.",),
    ),
    Topic(
        name="phones",
        doing="spending less time on {media}",
        thing="the break from {media}",
        slots={
            "media": Slot(
                train="""video clips, news websites, dating apps, group chats, puzzle apps, shopping sites,
                    sports blogs""",
                valid="phone games, online forums, holiday videos",
                test="gossip columns, chat rooms, celebrity blogs",
            )
        },
        train=(
            "I put my phone in a drawer {hour}, to spend less time on {media}.",
            "{name} and I have a deal to spend less time on {media}.",
            "My {kin} thinks I live on my phone, so I'm spending less time on {media}.",
            "Now that I know more people in {place}, I spend less time on {media}.",
        ),
        valid=("I've deleted half my apps, so {name} should see me spending less time on {media} {season}.",),
        test=("I leave the phone at home {hour}, as {name} wants me to spend less time on {media}.",),
    ),
)
